"""Requests that cannot be loaded, in a whole Echo: set aside, counted, listed, retried, dropped."""

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.echo_samples import metrics_body
from tests.support.echo_service import RunningEcho
from tests.support.picky_database import FATAL_METRIC, REFUSED_METRIC, create_picky
from tests.support.stores import only_files
from tests.support.waiting import until

from ingero.cli.commands.services.echo import echo as command
from ingero.echo.maintenance import verify


def run(folder: Path, *words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(
        command, ["quarantine", *words, "--db-path", str(folder / "echo.db")], standalone_mode=False
    )
    return int(answer.return_value or 0), answer.stdout


def metric_of(echo: RunningEcho, name: str) -> float:
    text = echo.get("/metrics").body.decode()
    return float(
        next(line for line in text.splitlines() if line.startswith(name + " "))[len(name) :]
    )


@only_files
def test_a_refused_request_is_set_aside_and_loading_goes_on(tmp_path: Path) -> None:
    create_picky(tmp_path / "echo.db")
    with RunningEcho(tmp_path) as echo:
        assert echo.send(metrics_body(points=2)).status == 200
        assert echo.send(metrics_body(name=REFUSED_METRIC)).status == 200
        assert echo.send(metrics_body(points=3, first=9)).status == 200
        assert echo.sql("SELECT count(*) FROM events").json["data"]["rows"] == [[5]]
        assert metric_of(echo, "ingero_echo_quarantined_requests") == 1
        assert metric_of(echo, 'ingero_echo_quarantined_total{reason="refused"}') == 1
        assert echo.get("/api/v2/health").json["data"]["status"] == "ok"
        status, text = run(tmp_path, "list", "--json")
        (entry,) = json.loads(text)
        assert (status, entry["request"], entry["reason"]) == (0, 2, "refused")
        status, text = run(tmp_path, "show", entry["id"][:8])
        assert status == 0
        assert REFUSED_METRIC in text
        status, text = run(tmp_path, "retry", "--all")
        assert (status, "kept" in text) == (1, True)
        assert run(tmp_path, "drop", entry["id"][:8])[0] == 0
        until(lambda: metric_of(echo, "ingero_echo_quarantined_requests") == 0)
    assert run(tmp_path, "list")[1] == "no requests are in quarantine\n"


@only_files
def test_verify_lists_the_quarantine_and_a_stopped_echo_can_be_retried(tmp_path: Path) -> None:
    create_picky(tmp_path / "echo.db")
    with RunningEcho(tmp_path) as echo:
        assert echo.send(metrics_body(name=REFUSED_METRIC)).status == 200
    found = verify(tmp_path / "echo.db")
    assert (found.problems, found.facts["quarantined_requests"]) == ([], 1)
    (note,) = (note for note in found.notes if "quarantine" in note)
    assert note.startswith("request 1 (metrics, ")
    assert "refused: " in note
    status, text = run(tmp_path, "retry", "--all", "--json")
    assert (status, json.loads(text)[0]["outcome"]) == (1, "kept")
    body = tmp_path / "body.pb"
    assert run(tmp_path, "show", json.loads(text)[0]["id"], "--output", str(body))[0] == 0
    assert body.read_bytes() == metrics_body(name=REFUSED_METRIC)


@only_files
def test_a_request_that_ends_the_store_process_is_set_aside_after_some_restarts(
    tmp_path: Path,
) -> None:
    create_picky(tmp_path / "echo.db")
    with RunningEcho(tmp_path, store_memory=1 << 30) as echo:
        sent = [
            threading.Thread(target=echo.send, args=(body,))
            for body in (metrics_body(points=2), metrics_body(name=FATAL_METRIC))
        ]
        for thread in sent:
            thread.start()
        until(
            lambda: (
                [entry["reason"] for entry in json.loads(run(tmp_path, "list", "--json")[1])]
                == ["crashed"]
            ),
        )
        for thread in sent:
            thread.join()
        assert echo.send(metrics_body(points=3, first=9)).status == 200
        assert echo.sql("SELECT count(*) FROM events").json["data"]["rows"] == [[5]]


@pytest.mark.parametrize("words", [["retry"], ["drop"], ["drop", "abc", "--all"]])
def test_ids_or_all_must_be_named(tmp_path: Path, words: list[str]) -> None:
    answer = CliRunner().invoke(command, ["quarantine", *words])
    assert answer.exit_code == 2
    assert "or give --all" in answer.output
