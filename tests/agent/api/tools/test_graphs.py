"""CUDA graphs of a process: their life in order, and how often each is launched."""

from pathlib import Path

from tests.support.asking import START_NS, ask, calls, data_of, trace

from ingero.agent.api.tools.context import AgentContext
from ingero.agent.api.tools.graphs import MAX_LINES

BEGIN, END, INSTANTIATE, LAUNCH = 1, 2, 3, 4
Call = tuple[int, int, int]  # operation and its two arguments
LIFE: list[Call] = [
    (BEGIN, 7, 0), (END, 7, 5), (INSTANTIATE, 5, 9), *[(LAUNCH, 7, 9)] * 120, (LAUNCH, 7, 8),
    (INSTANTIATE, 5, 6),
]  # fmt: skip


def graphs(path: Path, life: list[Call], apart_ns: int = 10**6) -> Path:
    """Process 42 does this, one call after the other."""
    rows = ", ".join(
        f"('{i}', {START_NS + i * apart_ns}, 42, 42, 8, {op}, 1000, {arg0}, {arg1})"
        for i, (op, arg0, arg1) in enumerate(life)
    )
    insert = (
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, arg0, arg1) VALUES "
    )
    return trace(path, (), insert + rows)


async def test_life_of_graphs_in_order_with_launches_in_a_row_as_one_line(tmp_path: Path) -> None:
    text = (
        await ask(AgentContext(db=graphs(tmp_path / "g.db", LIFE)), "graph_lifecycle", pid=42)
    ).text or ""
    assert text.splitlines() == [
        "2001-09-09T01:46:40Z graphBeginCapture stream=0x7 mode=global 1 us",
        "2001-09-09T01:46:40Z graphEndCapture stream=0x7 graph=0x5 1 us",
        "2001-09-09T01:46:40Z graphInstantiate graph=0x5 exec=0x9 1 us",
        "2001-09-09T01:46:40Z graphLaunch x120 stream=0x7 exec=0x9 120 us",
        "2001-09-09T01:46:40Z graphLaunch stream=0x7 exec=0x8 1 us",
        "2001-09-09T01:46:40Z graphInstantiate graph=0x5 exec=0x6 1 us",
        "total: 1 graphBeginCapture, 1 graphEndCapture, 2 graphInstantiate, 121 graphLaunch, "
        "121.0 launches per capture",
    ]


async def test_a_long_life_is_cut_to_its_end_and_counted_whole(tmp_path: Path) -> None:
    life = [(LAUNCH, 7, 1 + i % 2) for i in range(3 * MAX_LINES)]
    lines = (
        (
            await ask(AgentContext(db=graphs(tmp_path / "g.db", life)), "graph_lifecycle", pid=42)
        ).text
        or ""
    ).split("\n")
    assert len(lines) == MAX_LINES + 2
    assert lines[0] == "… only the newest of 600 calls:"
    assert lines[-1] == "total: 600 graphLaunch"


async def test_how_often_each_executable_is_launched(tmp_path: Path) -> None:
    here = AgentContext(db=graphs(tmp_path / "g.db", LIFE))
    data = await data_of(here, "graph_frequency", pid=42)
    found = {
        row["exec"]: (row["launches"], row["rate_per_s"], row["class"])
        for row in data["executables"]
    }
    assert found == {
        "0x9": (120, 2.0, "HOT"),
        "0x8": (1, 0.017, "cold"),
        "0x6": (0, 0.0, "never-launched"),
    }
    assert (data["pool_size"], data["recaptures"], data["window_s"]) == (3, 0, 60)


async def test_rates_are_of_the_window_also_of_an_old_recording_and_of_a_longer_since(
    tmp_path: Path,
) -> None:
    """One launch per second for two minutes, long ago: the rate does not depend on the clock."""
    db = graphs(tmp_path / "g.db", [(BEGIN, 7, 0), *[(LAUNCH, 7, 9)] * 121], apart_ns=10**9)
    for now_ns in (START_NS + 121 * 10**9, START_NS + 10**15):
        here = AgentContext(db=db, now_ns=lambda now_ns=now_ns: now_ns)
        for arguments in ({}, {"since": "400h"}, {"window_seconds": 20.0}):
            data = await data_of(here, "graph_frequency", pid=42, **arguments)
            assert 1.0 <= data["executables"][0]["rate_per_s"] <= 1.05
    assert "no events in the last 10s" in (
        (await ask(here, "graph_frequency", pid=42, since="10s")).text or ""
    )
    here = AgentContext(db=db, now_ns=lambda: START_NS + 121 * 10**9)
    assert (await data_of(here, "graph_frequency", pid=42, since="10s"))["window_s"] == 10


async def test_a_process_without_graphs_learns_who_has_some(tmp_path: Path) -> None:
    here = AgentContext(db=graphs(tmp_path / "g.db", LIFE))
    for name in ("graph_lifecycle", "graph_frequency"):
        assert (await ask(here, name, pid=1)).text == (
            "process 1 used no CUDA graphs in this part of the trace; these did: 42"
        )
    nobody = AgentContext(db=trace(tmp_path / "n.db", calls(3)))
    assert "no process did" in ((await ask(nobody, "graph_lifecycle", pid=42)).text or "")
