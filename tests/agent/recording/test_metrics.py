"""The metrics of a recording; those of one with a file are tested with the real tracer."""

import urllib.request
from pathlib import Path

import pytest
from tests.support.fake_tracer import FakeTracer
from tests.support.waiting import PATIENCE_S

from ingero.agent.nccl.rings import Rings
from ingero.agent.recording.app import TraceApp, TraceOptions
from ingero.agent.recording.metrics_page import serve_metrics
from ingero.errors import Unavailable
from ingero.transport.listen import parse_address


class NoFeed:
    """Never asked: the recording does not run."""


def test_a_port_alone_serves_both_views_to_everybody(tmp_path: Path) -> None:
    options = TraceOptions(node="n1", db=None, annotate=tmp_path / "run" / "annotate.sock")
    app = TraceApp(options, NoFeed())  # type: ignore[arg-type]  # see above
    assert app.annotations is not None
    url = serve_metrics(":0", app, FakeTracer(), Rings(()))
    host, port = parse_address(url.removeprefix("http://").removesuffix("/metrics"))
    assert host in ("::", "0.0.0.0")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'ingero_ringbuf_overflows_total{ring="calls"} 3' in lines
    assert 'ingero_trace_records_total{kind="event"} 0' in lines
    assert 'ingero_trace_chains{severity="HIGH"} 0' in lines
    assert 'ingero_trace_annotations_total{outcome="accepted"} 0' in lines
    assert 'ingero_trace_rings{state="open"} 0' in lines
    assert 'ingero_trace_ring_waits_total{budget="cpu"} 0' in lines
    assert 'ingero_trace_symbols_refused_total{reason="file"} 0' in lines
    app.annotations.close()
    with pytest.raises(Unavailable, match=f"port {port} is already in use"):
        serve_metrics(f":{port}", app, FakeTracer(), Rings(()))
