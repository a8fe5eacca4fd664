"""Files of the NCCL Inspector of which some collectives have no kernel times."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.dump_files import inspector_lines
from tests.support.recorded_jobs import Job, record

from ingero.importers.inspector import Inspection, read_inspector

RECORDS = record(Job(tp=1, dp=4, steps=600))


def recorded() -> list[dict[str, Any]]:
    """Return the objects of one rank: 596 all-reduces, and four broadcasts of one a step each."""
    objects = inspector_lines(RECORDS, 0, verbose=True)
    for each in objects[10:14]:
        each["coll_perf"]["coll"] = "Broadcast"
    return objects


def read(objects: list[dict[str, Any]]) -> Inspection:
    return read_inspector(Path("i.log"), "\n".join(map(json.dumps, objects)))


def spoil(objects: list[dict[str, Any]], op: str, count: int) -> None:
    chosen = [each["coll_perf"] for each in objects if each["coll_perf"]["coll"] == op]
    for perf in chosen[:: len(chosen) // count][:count]:
        perf["event_trace_ts"]["kernel_events"] = []


@pytest.mark.parametrize(("op", "count"), [("AllReduce", 240), ("AllReduce", 7), ("Broadcast", 4)])
def test_where_steps_would_lack_collectives_kernel_times_are_not_used(op: str, count: int) -> None:
    """Many steps would lack one of them, or all steps the same one."""
    objects = recorded()
    spoil(objects, op, count)
    found = read(objects)
    assert (len(found.records), found.exact_ends) == (600, False)
    (note,) = found.notes
    assert note == (
        f"i.log: {count} of 600 collectives have no kernel times; those of the others are not used"
    )


@pytest.mark.parametrize(("op", "count"), [("AllReduce", 6), ("Broadcast", 3)])
def test_few_without_kernel_times_spoil_no_others(op: str, count: int) -> None:
    objects = recorded()
    spoil(objects, op, count)
    found = read(objects)
    assert (len(found.records), found.exact_ends) == (600 - count, True)
    assert found.notes == (f"i.log: {count} of 600 collectives have no kernel times; left out",)


def test_a_file_without_kernel_times_has_nothing_to_leave_out() -> None:
    found = read(inspector_lines(RECORDS, 0, verbose=False))
    assert (len(found.records), found.exact_ends, found.notes) == (600, False, ())
