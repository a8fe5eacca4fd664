"""Without compiled parts everything gives the same results, only slower."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

from ingero.compiled import CODECS, FAST_PATH, PURE_VARIABLE, describe_parts

PARTS = (CODECS, FAST_PATH)
HIDE = f"import sys; sys.modules.update(dict.fromkeys({PARTS!r}))\n"  # importing None fails
FLEET = """
from ingero.contract.push.segment import decode_segment
from ingero.core.health.threshold import ThresholdPolicy
from ingero.contract.otlp.body import Encoding
from ingero.fleet.processor import FleetProcessor
from tests.support.pushes import as_json, protobuf
fleet = FleetProcessor(ThresholdPolicy())
for i in range(6):
    fleet.push(protobuf(f"p{i}", 0.9 + i / 100), Encoding.PROTOBUF, None, 0.0, 0)
    fleet.push(as_json(f"j{i}", 0.9 + i / 100), Encoding.JSON, "train", 0.0, 0)
fleet.push(protobuf("bad", 7.0), Encoding.PROTOBUF, None, 0.0, 0)
fleet.tick(1.0)
head = b"POST /v1/metrics HTTP/1.1\\r\\nContent-Type: application/json\\r\\n"
head += b"Content-Length: 2\\r\\n\\r\\n{}"
print(fleet.served("train"), fleet.counters, tuple(decode_segment(head)))
roster = fleet.clusters["train"].roster
print([roster.row(node, 1.0) for node in sorted(roster.rows)])
"""
COLUMNS = """
from ingero.contract.otlp.columns import PureColumns, new_columns
from ingero.contract.otlp.rows import Signal
from tests.support.batches import rows_of
from tests.support.pushes import protobuf
columns = new_columns()
for i in range(6):
    columns.add(Signal.METRICS, protobuf(f"n{i}", 0.9 + i / 100, sent_ns=i), i, 99)
print(rows_of(columns.take()))
print(not isinstance(columns, PureColumns), file=sys.stderr)
"""
VERSION = "from ingero.__main__ import main; main(['--version'])"
EXPORT = """
from ingero.__main__ import main
main(["export", "--format", sys.argv[1], "-d", sys.argv[2], "-o", sys.argv[3]])
"""


def run(script: str, *arguments: str, hidden: bool) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", (HIDE if hidden else "import sys\n") + script, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=True
    )


def version(script: str = "", **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", f"{script}{VERSION}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env=os.environ | environment,
    )
    return ended.stdout.splitlines()[2]


def test_version_shows_which_compiled_parts_are_in_use() -> None:
    assert version() == describe_parts()
    without = "compiled parts: none (pure Python; slower)"
    assert version(HIDE) == version(**{PURE_VARIABLE: "1"}) == without


def test_pure_and_compiled_service_agree() -> None:
    pure, compiled = (run(FLEET, hidden=hidden).stdout for hidden in (True, False))
    assert "quorum_met=True" in pure
    assert pure == compiled


def test_pure_and_compiled_columns_agree() -> None:
    pure, compiled = (run(COLUMNS, hidden=hidden) for hidden in (True, False))
    assert pure.stderr == "False\n"
    assert pure.stdout == compiled.stdout
    assert pure.stdout.count("ingero.node.health_score") >= 6


def test_pure_and_compiled_exports_agree(tmp_path: Path) -> None:
    run(
        "from ingero.__main__ import main\nmain(['demo', '--write-samples', sys.argv[1]])",
        str(tmp_path),
        hidden=True,
    )
    sample = next(tmp_path.glob("*.db"))
    for kind in ("perfetto", "perfetto-proto"):
        digests = set()
        for hidden in (True, False):
            to = tmp_path / f"{kind}-{hidden}"
            run(EXPORT, kind, str(sample), str(to), hidden=hidden)
            digests.add(hashlib.sha256(to.read_bytes()).hexdigest())
        assert len(digests) == 1, kind
