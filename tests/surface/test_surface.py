"""F104: names, fields, commands, metrics, settings and tables change only on purpose."""

import ast
import re

import pytest
from tests.support.fake_tracer import FakeTracer
from tests.surface.metrics import Metrics
from tests.surface.parts import SOURCE, surface
from tests.surface.snapshot import difference, recorded, unnamed

from ingero.agent.ebpf.metrics import tracer_families
from ingero.fleet.verdict_metrics import verdict_families
from ingero.fleet.verdicts import VerdictService

SECTIONS = {
    "command", "echo-database", "echo-http", "echo-tool", "enum", "environment", "mcp", "message",
    "metric", "name", "node-tool", "operation", "path", "query-parameter", "route", "setting",
    "trace-database",
}  # fmt: skip
CHANGELOG = "## Unreleased\n\n- `ingero blame --depth` is gone.\n\n## 0.1.0\n\n- `--json`\n"


def test_surface_is_as_recorded() -> None:
    """`make surface` records an addition, in the commit that makes it."""
    changed = difference(recorded(), surface())
    assert not changed, changed


def test_every_part_of_the_surface_is_recorded() -> None:
    """A part that can no longer be read would otherwise leave without anybody noticing."""
    assert {line.split(" ", 1)[0] for line in recorded()} == SECTIONS


@pytest.mark.parametrize(
    "line",
    [
        "command ingero status --json: flag",
        "echo-database events.ts: TIMESTAMP_NS",
        "echo-http GET /api/v2/whoami: 200, 401, 429, 503",
        "echo-tool SummaryAnswer.cluster_id: string, required",
        "enum CauseClass.COMPUTE: compute",
        "message Verdict.class: CauseClass, optional",
        "metric ingero_fleet_export_dropped_total: exporter, reason",
        "name THRESHOLD_HEADER: X-Ingero-Threshold",
        "node-tool SqlQuestion.query: string, required",
        "path FLEET_STATUS: /api/v1/status",
        "query-parameter agent since",
        "route fleet POST /v1/metrics",
        "trace-database events.duration: INTEGER",
    ],
)
def test_one_of_each_kind_is_read_as_a_person_would_write_it(line: str) -> None:
    assert line in surface()


def test_difference_names_what_is_gone_and_what_is_new_and_the_command() -> None:
    assert difference({"name A: a", "name B: b"}, {"name B: b", "name C: c"}).splitlines() == [
        "gone or changed: name A: a",
        "new: name C: c",
        "`make surface` records this; what is gone must be named in CHANGELOG.md first",
    ]


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("command ingero blame --depth: integer", True),
        ("command ingero blame --json: flag", False),  # named under an older version only
        ("metric ingero_fleet_threshold: cluster_id", False),
    ],
)
def test_what_is_gone_must_be_named_under_unreleased(line: str, is_named: bool) -> None:
    assert unnamed({line}, CHANGELOG) == ([] if is_named else [line])


def test_query_parameters_are_read_where_the_record_sees_them() -> None:
    """Behind another name for `query_params`, a parameter would be missing from the record."""
    unseen = re.compile(r"query_params(?!\.get\()")
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if unseen.search(path.read_text())
    }
    assert found == {"echo/page/asked.py"}, "its parameters are those of the tools"


def test_labels_are_followed_through_variables_parameters_loops_and_functions() -> None:
    source = """
TABLE = (("ingero_a_total", "help", "kind", "field"),)
def families(service):
    node = (("cluster_id", service.cluster),)
    ways = (("header", 1), ("poll", 2))
    found = []
    for member in service:
        found.append((_labels(member), 1.0))
    return [
        *(by_label(name, help, label, getattr(service, f)) for name, help, label, f in TABLE),
        gauge("ingero_b", "help", [((*node, ("via", way)), at) for way, at in ways]),
        gauge("ingero_c", "help", found),
        *_more(service, node),
    ]
def _labels(member):
    return (("node_id", member.node), *((("silenced", "true"),) if member.silenced else ()))
def _more(service, node):
    return [counter("ingero_d_total", "help", [(node, 1)]), counter("ingero_e", "help", _by("x"))]
def _by(label):
    yield ((label, 1),), 2
"""
    assert Metrics(ast.parse(source)).found() == {
        "ingero_a_total": {"kind"},
        "ingero_b": {"cluster_id", "via"},
        "ingero_c": {"node_id", "silenced"},
        "ingero_d_total": {"cluster_id"},
        "ingero_e": {"x"},
    }


def test_recorded_labels_are_those_of_a_scrape() -> None:
    lines = recorded()
    families = tracer_families(FakeTracer()) + verdict_families(VerdictService())
    shown = {
        f"metric {family.name}: {', '.join(sorted(label for label, _ in labels)) or 'no labels'}"
        for family in families
        for _, labels, _ in family.samples
    }
    assert len(shown) > 5
    assert shown - lines == set()
