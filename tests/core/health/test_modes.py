"""Detection modes: which threshold is used, how it arrived, and that no usable value is ignored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.threshold import QuorumReason
from ingero.contract.types import DetectionMode
from ingero.core.health.modes import (
    Delivery,
    FleetThreshold,
    ModeDecision,
    ModePolicy,
    by_header,
    by_poll,
    decide_mode,
    local_limit,
    should_poll,
    without_header,
)
from ingero.errors import ConfigError

POLICY = ModePolicy(push_interval_s=10.0)
FLEET, FLEET_CACHED = DetectionMode.FLEET, DetectionMode.FLEET_CACHED
LOCAL_CACHED, LOCAL, NONE = (
    DetectionMode.LOCAL_CACHED,
    DetectionMode.LOCAL_BASELINE,
    DetectionMode.NONE,
)


def mode(
    value: float | None,
    age_s: float = 0.0,
    *,
    quorum: bool = True,
    reachable: bool = True,
    warm: bool = True,
    reason: QuorumReason | None = None,
    quorum_seen: bool = True,
    **kw,
) -> ModeDecision:
    cached = None if value is None else FleetThreshold(value, quorum, 1000.0 - age_s, reason)
    return decide_mode(
        cached,
        quorum_seen=quorum_seen,
        reachable=reachable,
        is_warm=warm,
        now_s=1000.0,
        policy=POLICY,
        **kw,
    )


@pytest.mark.parametrize(
    ("decision", "expected", "threshold"),
    [
        pytest.param(mode(0.82, 5), FLEET, 0.82, id="fleet"),
        pytest.param(mode(0.82, 20), FLEET, 0.82, id="ages-are-inclusive"),
        pytest.param(mode(0.78, 5, quorum=False), FLEET_CACHED, 0.78, id="no-quorum"),
        pytest.param(mode(0.82, 120, reachable=False), LOCAL_CACHED, 0.82, id="unreachable"),
        pytest.param(mode(0.82, 600, reachable=False), LOCAL, 0.85, id="too-old"),
        pytest.param(
            mode(0.82, 600, reachable=False, warm=False), NONE, None, id="too-old-and-cold"
        ),
        pytest.param(mode(None, reachable=False, warm=False), NONE, None, id="nothing"),
        pytest.param(mode(None, warm=False), NONE, None, id="nothing-yet"),
        pytest.param(mode(None), NONE, None, id="reachable-without-threshold"),
        pytest.param(mode(None, reachable=False), LOCAL, 0.85, id="never-reached-f016"),
        pytest.param(mode(0.82, -5, warm=False), NONE, None, id="clock-stepped-back"),
    ],
)
def test_published_modes_vectors_66_v20(
    decision: ModeDecision, expected: DetectionMode, threshold: float
) -> None:
    assert (decision.mode, decision.threshold) == (expected, threshold)


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        pytest.param(
            mode(0.78, 5, quorum=False, reason=QuorumReason.FEW_NODES, baseline_score=0.95),
            (LOCAL, True),
            id="few",
        ),
        pytest.param(
            mode(
                0.78,
                5,
                quorum=False,
                reason=QuorumReason.FEW_NODES,
                warm=False,
                baseline_score=0.95,
            ),
            (FLEET_CACHED, False),
            id="few-and-cold",
        ),
        pytest.param(
            mode(
                0.78,
                5,
                quorum=False,
                reason=QuorumReason.PANIC,
                quorum_seen=False,
                baseline_score=0.95,
            ),
            (FLEET_CACHED, False),
            id="panic",
        ),
        pytest.param(
            mode(0.78, 5, quorum=False, baseline_score=0.95),
            (FLEET_CACHED, False),
            id="quorum-was-lost",
        ),
        pytest.param(
            mode(0.78, 5, quorum=False, reason=QuorumReason.FEW_NODES, baseline_score=None),
            (FLEET_CACHED, False),
            id="own-score-unknown",
        ),
        pytest.param(
            mode(0.78, 5, quorum=False, quorum_seen=False, baseline_score=0.95),
            (LOCAL, True),
            id="never-had",
        ),
    ],
)
def test_f016_a_node_without_peers_judges_itself_and_never_in_a_panic(
    decision: ModeDecision, expected: tuple[DetectionMode, bool]
) -> None:
    assert (decision.mode, decision.may_raise) == expected


def test_quorum_that_was_seen_once_is_remembered() -> None:
    seen = by_header(Delivery(), FleetThreshold(0.88, True, 1.0), 1.0)
    lost = by_poll(seen, FleetThreshold(0.88, False, 2.0), 2.0)
    assert (Delivery().quorum_seen, seen.quorum_seen, lost.quorum_seen) == (False, True, True)


@given(age_s=st.floats(0, 300), reachable=st.booleans(), quorum=st.booleans(), warm=st.booleans())
def test_bug_no_hole_while_a_usable_value_exists(
    age_s: float, reachable: bool, quorum: bool, warm: bool
) -> None:
    """The reference fell to `none` when Fleet was reachable and the value older than 20 s."""
    decision = mode(0.82, age_s, quorum=quorum, reachable=reachable, warm=warm)
    assert decision.mode in (FLEET, FLEET_CACHED, LOCAL_CACHED)
    assert decision.threshold == 0.82


@pytest.mark.parametrize("push_interval_s", [1.0, 5.0, 20.0, 60.0])
def test_bug_freshness_follows_the_push_interval_and_the_server_backoff(
    push_interval_s: float,
) -> None:
    """A fixed 20 s made agents with a longer interval alternate between fleet and none."""
    policy = ModePolicy(push_interval_s=push_interval_s)
    cached = FleetThreshold(0.82, True, 0.0)
    for age_s, backoff_s in ((push_interval_s * 1.2, 0.0), (push_interval_s * 1.1 + 120.0, 120.0)):
        found = decide_mode(
            cached, reachable=True, is_warm=True, now_s=age_s, policy=policy, backoff_s=backoff_s
        )
        assert found.mode is FLEET


def test_fail_open_chain_f017() -> None:
    chain = [
        mode(0.82, age_s, reachable=age_s < 30).mode for age_s in (5, 25, 31, 200, 299, 301, 3600)
    ]
    assert chain == [FLEET, FLEET_CACHED, LOCAL_CACHED, LOCAL_CACHED, LOCAL_CACHED, LOCAL, LOCAL]


def test_without_quorum_no_new_episode_is_raised() -> None:
    assert not mode(0.82, 5, quorum=False).may_raise
    assert mode(0.82, 5).may_raise


def test_the_local_limit_is_below_the_baseline_score_of_the_node() -> None:
    assert local_limit(None, POLICY) == 0.85
    assert local_limit(0.97, POLICY) == 0.85
    assert local_limit(0.40, POLICY) == pytest.approx(0.36)


def test_bug_a_poll_does_not_suspend_polling() -> None:
    """In the reference a GET set the header flag, and polling stopped while pushes failed."""
    polled = by_poll(Delivery(), FleetThreshold(0.88, True, 10.0), 10.0)
    assert should_poll(polled, 20.0, 15.0)
    assert polled.threshold == FleetThreshold(0.88, True, 10.0)


def test_polling_pauses_while_replies_carry_thresholds_and_resumes_when_they_age() -> None:
    headed = by_header(Delivery(), FleetThreshold(0.88, True, 10.0), 10.0)
    assert not should_poll(headed, 20.0, 15.0)
    assert should_poll(headed, 26.0, 15.0)
    assert should_poll(without_header(headed), 11.0, 15.0)


def test_refused_header_keeps_the_old_value_and_counts_as_delivery() -> None:
    old = by_header(Delivery(), FleetThreshold(0.88, True, 10.0), 10.0)
    refused = by_header(old, None, 12.0)
    assert (refused.threshold, refused.header_at_s) == (old.threshold, 12.0)


def test_bug_cold_start_answer_does_not_poison_a_good_value() -> None:
    """The reference overwrote a valid threshold with (0, false), and no node was a straggler."""
    good = by_header(Delivery(), FleetThreshold(0.88, True, 10.0), 10.0)
    assert by_poll(good, None, 12.0).threshold == FleetThreshold(0.88, True, 10.0)


@pytest.mark.parametrize(
    "wrong", [{"push_interval_s": 0}, {"cached_max_age_s": 0}, {"local_baseline_factor": 1.0}]
)
def test_policy_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong)).removesuffix("_s")):
        ModePolicy(**wrong)
