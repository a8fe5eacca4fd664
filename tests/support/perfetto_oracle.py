"""Perfetto's trace processor checks our exports (`make peers` installs it; needs Node)."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from tests.support import peers

ENGINE = peers.FOLDER / "perfetto/node_modules/@amazon-devices/webui-for-perfetto/v46.0"
DRIVER = Path(__file__).with_name("perfetto_engine.js")
_PIECE = 1 << 20
_PROBLEMS = (
    "SELECT name, severity, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
)


def ask_perfetto(trace: bytes, queries: Sequence[str]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each query; a trace with parse errors or lost data fails the test."""
    if not (ENGINE / "trace_processor.wasm").exists() or shutil.which("node") is None:
        pytest.skip("needs Perfetto's trace processor and Node; `make peers` installs it")
    protos = ProtoFactory(PlatformDelegate())
    done = subprocess.run(
        ["node", str(DRIVER), str(ENGINE)],
        input=_requests(protos, trace, [_PROBLEMS, *queries]),
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    problems, *answers = _answers(protos, done.stdout)
    assert problems == []
    assert len(answers) == len(queries), done.stderr.decode()
    return answers


def _requests(protos: ProtoFactory, trace: bytes, queries: Sequence[str]) -> bytes:
    rpc = protos.TraceProcessorRpc
    stream = protos.TraceProcessorRpcStream()
    for begin in range(0, len(trace), _PIECE):
        stream.msg.add(
            request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace[begin : begin + _PIECE]
        )
    stream.msg.add(request=rpc.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        stream.msg.add(request=rpc.TPM_QUERY_STREAMING).query_args.sql_query = query
    for number, message in enumerate(stream.msg, 1):
        message.seq = number
    return bytes(stream.SerializeToString())


def _answers(protos: ProtoFactory, replies: bytes) -> list[list[tuple[Any, ...]]]:
    """Rows by query; a query answers in batches, of which the last says so."""
    stream = protos.TraceProcessorRpcStream.FromString(replies)
    answers: list[list[tuple[Any, ...]]] = []
    names, cells = 0, []
    for message in stream.msg:
        assert not message.fatal_error, message.fatal_error
        assert not message.append_result.error, message.append_result.error
        if not message.HasField("query_result"):
            continue
        result = message.query_result
        assert not result.error, result.error
        names = len(result.column_names) or names
        for batch in result.batch:
            cells += _cells(batch)
            if batch.is_last_batch:
                answers.append(
                    [tuple(cells[i : i + names]) for i in range(0, len(cells), names)]
                    if names
                    else []
                )
                names, cells = 0, []
    return answers


def _cells(batch: Any) -> list[Any]:
    numbers, floats = iter(batch.varint_cells), iter(batch.float64_cells)
    texts = iter(batch.string_cells.split("\0"))
    take = {
        1: lambda: None,
        2: lambda: next(numbers),
        3: lambda: next(floats),
        4: lambda: next(texts),
    }
    return [take[kind]() for kind in batch.cells]
