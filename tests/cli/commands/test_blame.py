"""`ingero blame`, `whatif` and `import` as a person runs them."""

import json
import struct
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.dump_files import write_dumps
from tests.support.recorded_jobs import Job
from tests.support.step_jobs import StepJob, trace_rows, write_parquet

from ingero.cli.dispatch import run
from ingero.cli.show import wrap
from ingero.contract import names
from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest, plain_attributes

KEYS = {
    "culprits",
    "class",
    "not_sure",
    "evidence",
    "step_time",
    "ideal_step_time",
    "loss_gpu_hours",
    "usd_per_hour",
}
CULPRIT_KEYS = {"rank", "node", "worker", "class", "excess", "error", "confidence"}


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    folder.mkdir()
    write_dumps(folder, Job(tp=1, dp=4, slow_host={2: 0.003}, steps=30))
    return folder


def _json(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    status = run([str(arg) for arg in args])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    if args[0] == "blame":
        somebody = bool(answer["culprits"]) or answer["class"] is not None
        assert status == (1 if somebody else 3 if answer["not_sure"] else 0)
    else:
        assert status == 0
    return answer


def test_json_has_the_documented_keys(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = _json(capsys, "blame", dumps, "--json", "--rate", "2")
    assert answer.keys() >= KEYS
    (culprit,) = answer["culprits"]
    assert culprit.keys() >= CULPRIT_KEYS
    assert (culprit["rank"], culprit["class"], answer["class"]) == (2, "host", "host")
    assert answer["usd_per_hour"] == pytest.approx(4 * 2 * 0.003 / answer["step_time"], rel=0.05)


def test_nobody_is_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_dumps(tmp_path, Job(tp=1, dp=4, steps=30))
    answer = _json(capsys, "blame", *paths, "--json")
    assert (answer["culprits"], answer["class"], answer["not_sure"]) == ([], None, None)
    assert run(["blame", *map(str, paths)]) == 0
    assert capsys.readouterr().out.startswith("Nobody is slow.")


def test_text_names_rank_class_price_and_next_step(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["blame", str(dumps), "--rate", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rank 2: its host keeps the GPU waiting"
    for start in (
        "  excess",
        "  where",
        "  why",
        "  sure",
        "  next",
        "step ",
        "loss ",
        "price  at most $",
    ):
        assert any(line.startswith(start) for line in lines), start
    assert lines[-1] == "read: 4 flight recorder dumps; source: flight-recorder"
    assert "\x1b[" not in "".join(lines)


def test_pictures_are_svg_and_png(
    dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL", reason="PNG pictures need Pillow, which is in the extra `all`")
    svg, png = tmp_path / "slow.svg", tmp_path / "slow.png"
    assert run(["blame", str(dumps), "--picture", str(svg)]) == 1
    assert run(["blame", str(dumps), "--picture", str(png)]) == 1
    assert "rank 2" in svg.read_text("utf-8")
    head = png.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert min(struct.unpack(">II", head[16:])) > 200
    assert run(["blame", str(dumps), "--picture", str(tmp_path / "slow.jpg")]) == 2
    assert "must end in .svg or .png" in capsys.readouterr().err


def test_whatif_shows_what_each_fix_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow", reason="step traces are Parquet, which needs the parquet extra")
    path = write_parquet(
        tmp_path / "t.parquet", trace_rows(StepJob(dp=6, slow={(1, 1): 1.3, (2, 1): 1.3}))
    )
    answer = _json(capsys, "whatif", path, "--json", "--rate", "2")
    best, *others = answer["fixes"]
    assert best["fix"] == "all of them"
    assert best["step_time"] == pytest.approx(answer["step_time"] - best["saved"])
    assert best["usd_per_hour"] == pytest.approx(48 * 2 * best["saved_share"])
    alone = [row for row in others if row["fix"].startswith("dp")]
    assert len(alone) == 2
    # one of two equal stragglers gains nothing
    assert all(row["saved"] < 0.1 * best["saved"] for row in alone)
    assert run(["whatif", str(path)]) == 0
    assert "all of them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["blame"], "name files or folders"),
        (["blame", "nowhere"], "nowhere: no such file or folder"),
        (["blame", ".", "--gpu-model", "H100", "--rate", "-1"], "--rate"),
    ],
)
def test_mistakes_are_one_sentence(
    args: Sequence[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(list(args)) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--gpu-model", "Foo", "--provider", "aws"], "no price is known for Foo at aws: "),
        (["--gpu-model", "Foo"], "no price is known for Foo: `ingero rates show`"),
        (["--provider", "aws"], "--provider alone gives no price"),
        (["--gpu-model", "H100", "--provider", "aws"], ""),
        (["--provider", "aws", "--rate", "2"], ""),
    ],
)
@pytest.mark.parametrize("command", ["blame", "whatif"])
def test_a_gpu_without_a_price_is_named(
    dumps: Path, capsys: pytest.CaptureFixture[str], command: str, given: list[str], said: str
) -> None:
    run([command, str(dumps), "--json", *given])
    out, err = capsys.readouterr()
    json.loads(out)
    assert (err == "") == (said == "")
    assert said in err


def test_on_a_narrow_terminal_words_stay_whole_and_lines_are_indented(
    dumps: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(["blame", str(dumps)])
    wide = capsys.readouterr().out
    monkeypatch.setattr(wrap, "screen_columns", lambda: 50)
    run(["blame", str(dumps)])
    narrow = capsys.readouterr().out
    assert narrow.split() == wide.split()
    assert max(map(len, wide.splitlines())) > 80
    for what in ("  why    ", "  next   ", "  · "):
        line = narrow.splitlines().index(next(x for x in narrow.splitlines() if x.startswith(what)))
        first, second = narrow.splitlines()[line : line + 2]
        assert len(first) <= 50
        assert second.startswith(" " * len(what.rstrip()))


def test_import_sends_every_record_over_otlp(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[dict[str, Any]] = []
    with _OtlpServer(seen) as address:
        done = _json(
            capsys, "import", dumps, "--to", f"http://{address}", "--cluster", "prod", "--json"
        )
    assert (done["records"], done["added"], len(seen)) == (120, 120, 120)
    assert {point[names.NCCL_RANK] for point in seen} == {0, 1, 2, 3}
    assert {point[names.SOURCE] for point in seen} == {"flight-recorder"}


def test_import_in_plain_text_to_another_machine_is_refused_must_47(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", str(dumps), "--to", "http://echo.example:4318"]) != 0
    assert (
        "would travel in plain text; use https://, or allow it with --insecure"
        in capsys.readouterr().err
    )


class _OtlpServer:
    """Takes OTLP/HTTP metrics on loopback and keeps the attributes of every point."""

    def __init__(self, seen: list[dict[str, Any]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = decode_protobuf(MetricsRequest, body)
                for resource in request.resource_metrics:
                    for metric in resource.scope_metrics[0].metrics:
                        seen.extend(plain_attributes(point.attributes) for point in metric.numbers)
                self.send_response(200)
                self.send_header("Content-Type", names.PROTOBUF_TYPE)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_imported_records_give_the_same_answer(
    dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "job.db"
    first = _json(capsys, "import", dumps, "--to", database, "--job", "j1", "--json")
    again = _json(capsys, "import", dumps, "--to", database, "--job", "j1", "--json")
    assert (first["records"], first["added"], again["added"]) == (120, 120, 0)
    before, after = (
        _json(capsys, "blame", dumps, "--json"),
        _json(capsys, "blame", database, "--json"),
    )
    for answer in (before, after):
        for culprit in answer["culprits"]:
            del culprit["collective"]  # group names live in the dumps only; the database has hashes
    assert after["culprits"] == before["culprits"]
    assert after["step_time"] == before["step_time"]


def test_importing_into_what_is_no_database_names_the_flag_that_was_used(
    dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.db"
    notes.write_text("not a database, but long enough to be taken for one by its name alone\n" * 20)
    before = notes.read_bytes()
    for target, problem in (
        (notes, "is not a SQLite database"),
        (notes / "inside.db", "cannot be written"),
    ):
        assert run(["import", str(dumps), "--to", str(target)]) == 1
        said = capsys.readouterr().err
        assert problem in said
        assert said.rstrip().endswith("with --to")
        assert "--db" not in said
    assert notes.read_bytes() == before


def test_a_picture_that_cannot_be_written_is_an_error_in_words(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("there/is/none.svg", "there/is/none.png"):
        assert run(["blame", str(dumps), "--picture", str(dumps / name)]) == 3
        assert (
            "No such file or directory; name a file in an existing folder"
            in capsys.readouterr().err
        )
