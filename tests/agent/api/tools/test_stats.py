"""`get_trace_stats`: which operation of which process is slow, how often, from how many events."""

from pathlib import Path

from tests.support.asking import START_NS, ask, calls, data_of, trace

from ingero.agent.api.tools.context import AgentContext
from ingero.agent.api.tools.stats import MAX_OPS
from ingero.sim.samples import write_samples


async def test_slow_calls_of_a_finished_recording_are_counted_and_their_pattern_named(
    tmp_path: Path,
) -> None:
    here = AgentContext(db=trace(tmp_path / "t.db", calls(300, slow_every=50)))
    data = await data_of(here, "get_trace_stats")
    (op,) = data["ops"]
    assert (op["count"], op["p50_us"], op["p99_us"]) == (300, 1000, 50_000)
    assert (op["anomaly_count"], op["spike_every"]) == (6, 50)
    assert data["descriptions"] == ["cudaStreamSync: wait for a stream; arg0 stream"]
    assert (data["from"], data["until"]) == ("2001-09-09T01:46:40Z", "2001-09-09T01:46:42Z")


async def test_one_call_fills_its_own_time_and_no_more(tmp_path: Path) -> None:
    data = await data_of(AgentContext(db=trace(tmp_path / "t.db", calls(1))), "get_trace_stats")
    assert data["ops"][0]["wall_percent"] == 100


async def test_the_process_and_the_rank_behind_an_operation(tmp_path: Path) -> None:
    db = trace(
        tmp_path / "t.db",
        [*calls(20), *calls(20, pid=43)],
        "INSERT INTO processes (pid, name, seen_at, rank) VALUES (42, 'train.py', 1, 0), (43, "
        "'ls', 1, NULL)",
    )
    ops = {op["pid"]: op for op in (await data_of(AgentContext(db=db), "get_trace_stats"))["ops"]}
    assert (ops[42]["process_name"], ops[42]["rank"]) == ("[traced-data]train.py[/traced-data]", 0)
    assert "rank" not in ops[43], "missing is not zero"


async def test_another_recorder_tells_names_and_ranks_its_own_way(tmp_path: Path) -> None:
    db = trace(
        tmp_path / "t.db",
        calls(20),
        "DROP TABLE processes",
        "INSERT INTO process_names VALUES (42, 'train.py', 1)",
        "UPDATE events SET rank = 3, node = 'n1'",
    )
    data = await data_of(AgentContext(db=db), "get_trace_stats")
    assert data["nodes"] == ["[traced-data]n1[/traced-data]"]
    assert (data["ops"][0]["process_name"], data["ops"][0]["rank"]) == (
        "[traced-data]train.py[/traced-data]",
        3,
    )


async def test_nodes_of_a_merged_file_are_kept_apart(tmp_path: Path) -> None:
    merged = write_samples(tmp_path)[3]
    data = await data_of(AgentContext(db=merged), "get_trace_stats")
    assert len(data["nodes"]) == 3
    assert {op["node"] for op in data["ops"]} == set(data["nodes"])


async def test_events_counted_but_not_kept_are_reported(tmp_path: Path) -> None:
    bucket = START_NS - START_NS % (60 * 10**9)
    db = trace(
        tmp_path / "t.db",
        calls(20),
        f"INSERT INTO event_aggregates VALUES ({bucket}, 4, 1, 42, 900, 0, 900000, 500, 2000, 0)",
        f"INSERT INTO event_aggregates VALUES ({bucket}, 1, 5, 42, 100, 20, 100000000, 900000, "
        f"1100000, 0)",
    )
    data = await data_of(AgentContext(db=db), "get_trace_stats")
    assert data["events"] == {"counted": 1000, "kept": 20}
    assert [(row["operation"], row["count"], row["avg_us"]) for row in data["totals"]] == [
        ("cudaStreamSync", 100, 1000.0), ("cuLaunchKernel", 900, 1.0)
    ]  # fmt: skip


async def test_a_minute_that_began_before_the_window_is_not_counted_into_it(tmp_path: Path) -> None:
    bucket = START_NS - START_NS % (60 * 10**9)
    everything = (
        f"INSERT INTO event_aggregates VALUES ({bucket}, 1, 5, 42, 200, 200, 200000000, 1000000, "
        f"1000000, 0)"
    )
    db = trace(tmp_path / "t.db", calls(200), everything)
    data = await data_of(
        AgentContext(db=db, now_ns=lambda: START_NS + 2 * 10**9), "get_trace_stats", since="1s"
    )
    assert data["events"] == {"counted": 100, "kept": 100}
    assert "totals" not in data


async def test_above_the_limit_totals_stand_in_for_percentiles_also_without_buckets(
    tmp_path: Path,
) -> None:
    db = trace(tmp_path / "t.db", calls(20))
    data = await data_of(AgentContext(db=db, aggregate_above_events=10), "get_trace_stats")
    assert (data["mode"], data["ops"][0]["count"], data["ops"][0]["avg_us"]) == (
        "aggregate",
        20,
        1000.0,
    )
    assert "p50_us" not in data["ops"][0]


async def test_many_operations_are_truncated_with_a_note(tmp_path: Path) -> None:
    events = [(START_NS + pid, pid, 1, 5, 1000) for pid in range(1, MAX_OPS + 51)]
    data = await data_of(AgentContext(db=trace(tmp_path / "t.db", events)), "get_trace_stats")
    assert len(data["ops"]) == MAX_OPS
    assert data["more"].startswith("50 more")


async def test_an_empty_trace_and_an_old_one_say_so(tmp_path: Path) -> None:
    empty = AgentContext(db=trace(tmp_path / "e.db"))
    old = AgentContext(db=trace(tmp_path / "o.db", calls(20)))
    for name in ("get_trace_stats", "get_causal_chains", "get_stacks"):
        assert "holds no events" in ((await ask(empty, name)).text or "")
        text = (await ask(old, name, since="5m")).text or ""
        assert "no events in the last 5m" in text
        assert "2001-09-09T01:46:40Z" in text
