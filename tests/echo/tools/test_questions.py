"""Every question against a store with known answers, asked over HTTP as users do."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jsonschema
import msgspec
import pytest
from tests.support.echo_service import RunningEcho
from tests.support.questions_data import (
    SECOND,
    START_NS,
    collective_bodies,
    collectives,
    gauge,
    logs,
    metrics,
    score,
    total,
)

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.core.cost import idle_cost
from ingero.echo.investigate import investigate_text
from ingero.echo.tools.catalogue import TOOLS
from ingero.echo.tools.stragglers import StragglersAnswer
from ingero.echo.tools.summary import SummaryAnswer

H100 = "NVIDIA H100 80GB HBM3"
STALLS = {step: {5: 290.0} for step in range(3, 100, 14)}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEcho]:
    with RunningEcho(
        tmp_path_factory.mktemp("echo"), bearer_rate=10_000, bearer_burst=100_000
    ) as running:
        for body in bodies():
            assert running.send(body).status == 200
        for body in logs():
            assert running.send(body, "logs").status == 200
        yield running


def bodies() -> Iterator[bytes]:
    for number in range(8):
        values = [0.92, 0.92, 0.92] if number != 5 else [0.93, 0.41, 0.40]
        yield score("prod", f"gpu-{number}", values)
    fleet = {"threshold": 0.88, "median": 0.92, "mad": 0.01, "quorum_met": 1.0}
    yield metrics(
        "prod", None, [gauge(f"ingero_fleet_{name}", [value]) for name, value in fleet.items()]
    )
    for number in range(6):
        yield score("lone", f"n{number}", [0.9 if number != 2 else 0.2])
    learning = {names.NODE_STATE: "calibrating"}
    yield metrics("new", "first", [gauge(names.HEALTH_SCORE, [0.2], learning)])
    yield from collective_bodies(
        "barrier", collectives(100, 8, STALLS, skew_ms={2: 40.0, 5: -25.0})
    )
    yield from collective_bodies(
        "gpu", collectives(60, 8, {s: {3: 30.0} for s in range(60)}, is_gpu_timed=True)
    )
    yield from collective_bodies("even", collectives(40, 8, {}))
    yield from collective_bodies("paid", collectives(1, 64, {0: {41: 80.0}}))
    for rank in range(64):
        what = {"ingero_provider": "lambda", "ingero_gpu_model": H100}
        yield metrics("paid", f"node-{rank:02d}", [gauge("up", [1.0])], **what)
    for node, ratio in (("calm", 0.0), ("cut", 0.4), ("worn", 0.1)):
        held = [gauge(names.MEMFRAG_RATIO, [0.9, ratio]), gauge(names.MEMFRAG_RESERVED, [100])]
        yield metrics("held", node, held)
    for node, pace in (("a", 100), ("b", 10)):
        h2d = {names.MEMCPY_DIRECTION: "h2d"}
        yield metrics(
            "totals",
            node,
            [
                total("gpu.memcpy.bytes_total", [pace * i + 7 for i in range(11)], h2d),
                total(
                    "gpu.memcpy.bytes_total", [500, 600, 50, 80], {names.MEMCPY_DIRECTION: "d2h"}
                ),
                total(names.KERNEL_LAUNCH_TOTAL, [1000 + 50 * pace * i for i in range(5)]),
                total("gpu.memfrag.ioctl_event_total", [0, pace * 3], {"cmd": "0x2a"}),
                gauge("gpu.memory.fragmentation_estimate", [pace / 1000]),
                gauge(names.FLEET_IDLE_GPU_COST, [1.0, pace / 10], {"gpu_model": node}),
            ],
        )


def quickest_s(ask: Callable[[], object]) -> float:
    """Return the shortest of five times, which other work on this machine disturbs least."""
    took_s = []
    for _ in range(5):
        began = time.perf_counter()
        ask()
        took_s.append(time.perf_counter() - began)
    return min(took_s)


def test_f081_the_planted_straggler_is_first_with_all_that_is_known(echo: RunningEcho) -> None:
    answer = echo.answer("find_stragglers", cluster_id="prod", window="all")
    (found,) = answer["stragglers"]
    assert (found["node_id"], found["state"], found["rank"]) == ("gpu-5", "straggler", 40)
    assert found["reasons"] == ["verdict", "score"]
    assert (found["score"], found["gap"], found["usd_per_hour"]) == (0.40, 0.48, 12.5)
    assert (found["class"], found["next"]) == ("compute", "drain gpu-5")
    assert (answer["threshold"], answer["threshold_source"], answer["nodes"]) == (0.88, "fleet", 8)


def test_without_fleet_the_line_is_computed_and_said(echo: RunningEcho) -> None:
    answer = echo.answer("find_stragglers", cluster_id="lone")
    assert [found["node_id"] for found in answer["stragglers"]] == ["n2"]
    assert answer["stragglers"][0]["since"] == "2025-11-15T01:00:00.000Z"
    assert answer["threshold_source"] == "computed"
    assert "Fleet reported no threshold here" in answer["notes"][0]


def test_f087_the_summary_counts_like_sql(echo: RunningEcho) -> None:
    answer = echo.answer("summary", cluster_id="prod")
    sql = (
        "SELECT count(*), count(DISTINCT node_id), count(DISTINCT metric_name) FROM events "
        "WHERE cluster_id = 'prod'"
    )
    ((events, nodes, kinds),) = echo.sql(sql).json["data"]["rows"]
    assert (answer["events"], answer["nodes"], answer["metrics"]) == (events, nodes, kinds)
    assert (answer["active"], answer["silent"], answer["quorum_met"], answer["median"]) == (
        8,
        0,
        True,
        0.92,
    )
    assert [slow["node_id"] for slow in answer["stragglers"]] == ["gpu-5"]
    assert [chain["root_cause"] for chain in answer["chains"]] == ["backup on 4 cores"]
    assert (
        answer["next"] == "fleet.cluster.find_stragglers shows why gpu-5 is slow and what it costs"
    )


async def test_before_a_node_is_active_nobody_is_called_healthy(echo: RunningEcho) -> None:
    """Fleet says "not sure" then; a score of 0.2 that nothing was compared with is no verdict."""
    answer = echo.answer("summary", cluster_id="new")
    assert (answer["calibrating"], answer["threshold"], answer["straggler_count"]) == (1, None, 0)
    assert answer["next"].startswith("no node was reported as slow, but none is active yet")
    slow = echo.answer("find_stragglers", cluster_id="new")
    assert slow["notes"] == [
        "no node is active yet, so health scores were not compared: only verdicts and collectives "
        "were used"
    ]
    found = msgspec.convert(slow, StragglersAnswer)
    told = msgspec.convert(answer, SummaryAnswer)
    text = await investigate_text(partial(asyncio.sleep, 0, found), partial(asyncio.sleep, 0, told))
    assert "no node of new was reported as slow, but none is active yet" in text


def test_outliers_are_ranked_and_totals_compared_by_growth(echo: RunningEcho) -> None:
    found = echo.answer("find_outlier_nodes", cluster_id="lone")["outliers"]
    assert [(outlier["node_id"], outlier["value"]) for outlier in found] == [("n2", 0.2)]
    few = echo.answer("find_outlier_nodes", cluster_id="totals", metric=names.KERNEL_LAUNCH_TOTAL)
    assert (few["unit"], few["nodes"], few["outliers"]) == ("per second", 2, [])
    assert "only 2 nodes report" in few["notes"][0]
    alone = echo.answer("find_outlier_nodes", cluster_id="new")
    assert "only 1 node reports ingero.node.health_score" in alone["notes"][0]
    assert "ingero.node.health_score (1 node)" in alone["notes"][0]


def test_f108_f109_the_late_rank_and_its_period_are_named(echo: RunningEcho) -> None:
    """Rank 5 is 290 ms late every 14 steps.

    The clocks of the nodes differ by more than some of the lateness.
    """
    answer = echo.answer("nccl_summary", cluster_id="barrier")
    assert quickest_s(lambda: echo.answer("nccl_summary", cluster_id="barrier")) < 3, "F112"
    late = answer["late"]
    assert (late["node_id"], late["rank"], late["times"], late["period"]) == (
        "node-05",
        5,
        len(STALLS),
        14,
    )
    assert late["lateness_ms"] == pytest.approx(290, abs=1)
    (op,) = answer["ops"]
    assert (op["op"], op["collectives"], op["records"], op["ranks"]) == (
        "AllReduce",
        100,
        800,
        8,
    ), "F110"
    assert op["bytes"] == 800 << 20, "F089"
    assert op["gigabytes_per_s"] == pytest.approx((1 << 20) / 10e-3 / 1e9, rel=1e-3)
    assert answer["ranks"][0]["rank"] == 5
    assert answer["ranks"][0]["caused_rank_seconds"] == pytest.approx(
        7 * 0.290 * len(STALLS), rel=0.01
    )
    (straggler,) = echo.answer("find_stragglers", cluster_id="barrier")["stragglers"]
    assert (straggler["node_id"], straggler["rank"], straggler["period"]) == ("node-05", 5, 14)


def test_gpu_timed_lateness_needs_no_clock_and_nobody_is_named_without_cause(
    echo: RunningEcho,
) -> None:
    late = echo.answer("nccl_summary", cluster_id="gpu")["late"]
    assert (late["rank"], late["lateness_ms"], late["period"]) == (
        3,
        pytest.approx(30, abs=0.01),
        None,
    )
    even = echo.answer("nccl_summary", cluster_id="even")
    assert even["late"] is None
    assert even["ops"][0]["waited_rank_seconds"] == 0
    assert echo.answer("nccl_summary", cluster_id="even", op="ncclAllGather")["ops"] == []
    assert "no collective arrived" in echo.answer("nccl_summary", cluster_id="prod")["notes"][0]


def test_f111_a_stall_is_answered_within_two_seconds_of_its_last_event(echo: RunningEcho) -> None:
    """The clock starts before the last event is sent, and stops when the answer names the rank."""
    late = {step: {6: 120.0} for step in range(10, 20)}
    took_s = []
    for attempt in range(3):  # other work on this machine may disturb one of them
        cluster = f"fresh-{attempt}"
        *earlier, last = collective_bodies(cluster, collectives(20, 8, late))
        for body in earlier:
            echo.send(body)
        began_s = time.perf_counter()
        assert echo.send(last).status == 200
        (found,) = echo.answer("find_stragglers", cluster_id=cluster)["stragglers"]
        took_s.append(time.perf_counter() - began_s)
        assert (found["rank"], found["node_id"]) == (6, "node-06")
    assert min(took_s) < 2


def test_f092_cost_is_the_formula_at_the_rate_of_the_table(echo: RunningEcho) -> None:
    """V8: 63 ranks x 0.080 s x 2.49 an hour."""
    expected = idle_cost(0.080, 63, 2.49)
    answer = echo.answer("get_cost", cluster_id="paid")
    assert answer["amount"] == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(0.003486, abs=1e-9)
    (row,) = answer["rows"]
    assert (row["name"], row["collectives"]) == ("node-41", 1)
    assert row["waited_gpu_seconds"] == pytest.approx(63 * 0.080)
    assert (answer["unpriced_gpu_seconds"], answer["currency"]) == (0, "USD")
    by_op = echo.answer(
        "get_cost", cluster_id="paid", group_by="op", usd_per_gpu_hour=10, gpus_per_rank=2
    )
    assert by_op["rows"][0]["name"] == "AllReduce"
    assert by_op["amount"] == pytest.approx(idle_cost(0.080, 63, 10, 2))
    unknown = echo.answer("get_cost", cluster_id="barrier")
    assert (unknown["amount"], unknown["rows"][0]["amount"]) == (0, None), "unknown is not free"
    assert unknown["unpriced_gpu_seconds"] == pytest.approx(7 * 0.290 * len(STALLS), rel=0.01)
    assert "some GPUs have no rate" in unknown["notes"][0]
    assert echo.answer("get_cost", cluster_id="prod")["open_episodes_usd_per_hour"] == 12.5
    idle = echo.answer("get_cost", cluster_id="totals")["idle_gpus_usd_per_hour"]
    assert idle == 10.0 + 1.0, "the newest of each kind of GPU"


def test_f090_memory_copies_are_the_growth_of_totals(echo: RunningEcho) -> None:
    answer = echo.answer("memcpy_bandwidth_summary", cluster_id="totals")
    found = {(row["node_id"], row["direction"]): row for row in answer["copies"]}
    assert found["a", "h2d"]["bytes"] == 1000, "max minus min"
    assert found["a", "h2d"]["bytes_per_s"] == found["a", "h2d"]["p99_bytes_per_s"] == 100
    assert found["a", "d2h"]["bytes"] == 100 + 50 + 30, "a restart counts from zero"
    assert answer["totals"] == {"h2d": 1100, "d2h": 360}


def test_f091_launches_and_fragmentation_have_the_busiest_first(echo: RunningEcho) -> None:
    launches = echo.answer("kernel_launch_summary", cluster_id="totals")
    assert [(n["node_id"], n["launches"]) for n in launches["nodes"]] == [
        ("a", 20_000),
        ("b", 2_000),
    ]
    assert (launches["total"], launches["nodes"][0]["launches_per_s"]) == (22_000, 5_000)
    hot = echo.answer("memfrag_hotspots", cluster_id="totals")
    assert [(n["node_id"], n["events"], n["fragmentation"]) for n in hot["nodes"]] == [
        ("a", 300, 0.1),
        ("b", 30, 0.01),
    ]
    assert hot["nodes"][0]["commands"] == [{"cmd": "0x2a", "events": 300}]
    held = echo.answer("memfrag_hotspots", cluster_id="held")["nodes"]
    assert [(n["node_id"], n["fragmentation"], n["reserved_bytes"]) for n in held] == [
        ("cut", 0.4, 100), ("worn", 0.1, 100), ("calm", 0.0, 100),
    ]  # fmt: skip


def test_a_cluster_must_be_named_when_there_are_several(echo: RunningEcho) -> None:
    refused = echo.ask("summary")
    assert (refused.status, refused.code) == (400, "cluster_required")
    assert "barrier" in refused.json["error"]["message"]
    assert "raise limit" in echo.answer("nccl_summary", cluster_id="barrier", limit=2)["notes"][-1]
    assert echo.answer("nccl_summary", cluster_id="barrier", limit=2)["truncated"] is True


def test_f086_every_answer_fits_its_published_schema(echo: RunningEcho) -> None:
    listed = echo.get("/api/v2/tools/list").json["data"]["tools"]
    assert len(listed) == 11
    for tool in listed:
        arguments = (
            {"sql": "SELECT 1 AS x"}
            if tool["name"].endswith("run_analysis")
            else {"cluster_id": "prod"}
        )
        jsonschema.Draft202012Validator(tool["input_schema"]).validate(arguments)
        jsonschema.Draft202012Validator(tool["output_schema"]).validate(
            echo.answer(tool["name"], **arguments)
        )
        assert len(tool["description"]) > 60


def test_answers_are_bounded(echo: RunningEcho, tmp_path: Path) -> None:
    wide = echo.sql("SELECT range AS i, concat('x', range) FROM range(20000)", limit=10_000)
    assert (len(wide.json["data"]["rows"]), wide.json["data"]["truncated"]) == (10_000, True)
    assert wide.json["data"]["notes"] == [
        "the result was cut off: aggregate, filter by received_ts or node_id, or raise limit"
    ]
    for rows, limit, truncated in ((1001, 1000, True), (1000, 1000, False)):
        found = echo.sql(f"SELECT * FROM range({rows})", limit=limit).json["data"]
        assert (len(found["rows"]), found["truncated"]) == (1000, truncated), "V10c"
    assert echo.sql("SELECT 1", limit=10_001).code == "bad_argument"


def test_verdicts_about_engines_name_the_engine(echo: RunningEcho) -> None:
    sql = "SELECT node_id, job_id, engine FROM verdicts WHERE engine IS NOT NULL"
    assert echo.answer("run_analysis", sql=sql)["rows"] == [
        ["gpu-7", "llama", "vllm on port 8000, pid 7"]
    ]


def test_one_absurd_value_spoils_no_answer(echo: RunningEcho) -> None:
    """A duration of 1e300 ms, 2^31-1 ranks or an infinite total used to end seven questions."""
    odd = (1e300, -1e300, math.inf, math.nan, 1e308, 1e308)
    given = [
        {names.NCCL_NRANKS: 2**31 - 1},
        *({names.NCCL_GPU_DURATION_NS: ns} for ns in (-(2**63), 2**63 - 1)),
        *({names.COLLECTIVE_DURATION_MS: ms} for ms in odd),
        *({names.COLLECTIVE_LATENESS_MS: ms} for ms in odd),
    ]
    usual = {names.NCCL_OP: "AllReduce", names.NCCL_COMM: "ab", names.NCCL_NRANKS: 2}
    usual |= {names.COLLECTIVE_DURATION_MS: 1.0, names.COLLECTIVE_LATENESS_MS: 1.0}
    points = []
    for number, absurd in enumerate(given):  # one value of one of two ranks in each collective
        for rank in (0, 1):
            place = {names.NCCL_SEQ: number, names.NCCL_RANK: rank, names.NCCL_GPU_DURATION_NS: 99}
            sent = usual | place | (absurd if rank else {})
            timed = [(n, sent.pop(n)) for n in list(sent) if n.startswith("nccl.collective.")]
            points += [gauge(name, [value], sent) for name, value in timed]
    counted = [
        otlp.Metric(
            name=name,
            sum=otlp.Sum(
                data_points=tuple(
                    otlp.NumberPoint(time_unix_nano=START_NS + i * SECOND, as_double=value)
                    for i, value in enumerate((1.0, *odd, *later))
                ),
                aggregation_temporality=2,
                is_monotonic=True,
            ),
        )
        for name, later in (
            ("gpu.memcpy.bytes_total", (9e18, 1.0, 9e18, 0.0, 9e18)),
            (names.KERNEL_LAUNCH_TOTAL, (5.0, 7.0)),
        )
    ]
    assert echo.send(metrics("absurd", "n", [*points, *counted])).status == 200
    assert echo.send(score("absurd", "n", odd)).status == 200
    for tool in TOOLS:
        if tool.name != "fleet.cluster.run_analysis":
            reply = echo.ask(tool.name, cluster_id="absurd")
            assert reply.status == 200, (tool.name, reply.body)
    assert echo.answer("kernel_launch_summary", cluster_id="absurd")["total"] == 6
    copies = echo.answer("memcpy_bandwidth_summary", cluster_id="absurd")["copies"]
    assert [each["bytes"] for each in copies] == [2**63 - 1]
    assert echo.sql("SELECT max(lateness_ms) FROM collective_lateness").status == 200
