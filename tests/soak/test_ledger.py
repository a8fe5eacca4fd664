"""The accounts of a soak: lost, doubled and changed events, and who may be named."""

from tests.soak.ledger import (
    BATCH,
    Account,
    Injected,
    Ledger,
    Named,
    Point,
    body_of,
    digest_of,
    false_names,
    missing_names,
    points_of,
)

from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest

SLOW = Injected("n7", 100.0, 200.0)


def sent(*batches: int) -> tuple[Ledger, list[tuple[int, Point]]]:
    """A ledger in which these batches were acknowledged, and what is stored of them."""
    points = {batch: points_of(batch, 1000) for batch in batches}
    ledger = Ledger({batch: digest_of(found) for batch, found in points.items()})
    return ledger, [(batch, point) for batch, found in points.items() for point in found]


def test_everything_that_was_acknowledged_is_found_in_any_order() -> None:
    ledger, stored = sent(1, 2, 3)
    account = ledger.compare(reversed(stored))
    assert account == Account(3, 0, 0, 0)
    assert account.is_right


def test_one_missing_event_is_a_lost_batch() -> None:
    ledger, stored = sent(1, 2, 3)
    assert ledger.compare(stored[:-1]) == Account(3, 1, 0, 0)
    assert not ledger.compare(stored[:-1]).is_right
    assert ledger.compare([]) == Account(3, 3, 0, 0)


def test_a_batch_that_was_loaded_twice_is_doubled_acknowledged_or_not() -> None:
    ledger, stored = sent(1, 2)
    _, other = sent(9)
    assert ledger.compare([*stored, *stored[:BATCH]]) == Account(2, 0, 1, 0)
    assert ledger.compare([*stored, *other, *other]) == Account(2, 0, 1, 0)


def test_an_event_with_another_value_or_time_is_changed() -> None:
    ledger, stored = sent(1)
    (batch, (at_ns, value)), *others = stored
    assert ledger.compare([(batch, (at_ns, value + 1e-9)), *others]) == Account(1, 0, 0, 1)
    assert ledger.compare([(batch, (at_ns + 1, value)), *others]) == Account(1, 0, 0, 1)


def test_what_was_stored_without_an_answer_is_no_fault() -> None:
    ledger, stored = sent(1)
    _, other = sent(9)
    assert ledger.compare([*stored, *other]).is_right


def test_a_run_in_which_nothing_was_acknowledged_proves_nothing() -> None:
    assert not Ledger().compare([]).is_right


def test_a_request_carries_the_points_of_its_batch() -> None:
    points = points_of(5, 10**18)
    request = decode_protobuf(MetricsRequest, body_of(5, points, "pad"))
    (metric,) = request.resource_metrics[0].scope_metrics[0].metrics
    assert metric.gauge is not None
    assert [(p.time_unix_nano, p.as_double) for p in metric.gauge.data_points] == points
    assert len(set(points)) == BATCH and not set(points) & set(points_of(6, 10**18))


def test_only_the_slow_node_may_be_named_and_only_once_it_is_slow() -> None:
    early, other = Named(99.0, "n7", "status"), Named(150.0, "n8", "status")
    right, late = Named(150.0, "n7", "status"), Named(500.0, "n7", "status")
    assert false_names([early, other, right, late], SLOW) == [early, other]
    assert false_names([], SLOW) == []


def test_the_slow_node_must_be_named_in_every_place_while_it_is_slow() -> None:
    status, log = Named(150.0, "n7", "status"), Named(201.0, "n7", "log")
    assert missing_names([status, log], SLOW, ["status", "log"]) == ["log"]
    assert missing_names([], SLOW, ["status"]) == ["status"]
