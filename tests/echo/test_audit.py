"""The audit trail: requests without a valid token cannot fill it."""

import logging
from typing import Any

import pytest

from ingero.echo.audit import FLUSH_ROWS, LONGEST_TEXT, MAX_ADDRESSES, AuditTrail, Entry
from ingero.storage.events.schema import AUDIT_LOG

NAMES = [name for name, _, _ in AUDIT_LOG.columns]


class Store:
    """Keeps the rows that it is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    async def audit(self, rows: list[list[Any]]) -> None:
        self.rows += [dict(zip(NAMES, row, strict=True)) for row in rows]


def refused(address: str, path: str = "/x") -> Entry:
    return Entry("r", status=401, tool=path, address=address)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_763_168_400.0]
    monkeypatch.setattr("ingero.echo.audit.time.time", lambda: now[0])
    return now


async def test_refused_requests_share_one_row_per_address_and_minute(clock: list[float]) -> None:
    store = Store()
    trail = AuditTrail(store)  # type: ignore[arg-type] - only `audit` is used
    for _ in range(700):
        trail.add(refused("10.0.0.1"))
    trail.add(refused("10.0.0.2"))
    clock[0] += 60
    trail.add(refused("10.0.0.1"))
    await trail.stop()
    assert [(row["address"], row["requests"], row["status"]) for row in store.rows] == [
        ("10.0.0.1", 700, 401),
        ("10.0.0.2", 1, 401),
        ("10.0.0.1", 1, 401),
    ]
    assert trail.written == 3


async def test_rows_that_cannot_be_written_cost_themselves_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    trail = AuditTrail(store)  # type: ignore[arg-type] - only `audit` is used
    audit, errors = store.audit, [RuntimeError("a defect")]

    async def failing_once(rows: list[list[Any]]) -> None:
        if errors:
            raise errors.pop()
        await audit(rows)

    store.audit = failing_once  # type: ignore[method-assign] # on purpose
    for number in range(FLUSH_ROWS + 1):
        trail.add(Entry("r", tool=f"t{number}"))
    await trail.stop()
    assert [row["tool"] for row in store.rows] == [f"t{FLUSH_ROWS}"]
    assert (trail.written, trail.dropped) == (1, FLUSH_ROWS)
    assert "audit_failed" in caplog.text


async def test_many_addresses_share_one_row(clock: list[float]) -> None:
    store = Store()
    trail = AuditTrail(store)  # type: ignore[arg-type] - only `audit` is used
    for number in range(3 * MAX_ADDRESSES):
        trail.add(refused(f"2001:db8::{number:x}"))
    await trail.stop()
    assert len(store.rows) == MAX_ADDRESSES + 1
    assert store.rows[-1]["address"] == "others"
    assert store.rows[-1]["requests"] == 2 * MAX_ADDRESSES


async def test_texts_that_a_client_chooses_are_cut(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ingero.echo.audit")
    store = Store()
    trail = AuditTrail(store)  # type: ignore[arg-type] - only `audit` is used
    entry = Entry("r" * 9999, token_digest="abc", status=200, tool="/" * 9999)
    entry.clusters = ["c" * 9999] * 999
    trail.add(entry)
    await trail.stop()
    (row,) = store.rows
    assert len(row["request_id"]) == len(row["tool"]) == len(row["cluster_ids"][0]) == LONGEST_TEXT
    assert (len(row["cluster_ids"]), row["requests"], row["address"]) == (64, 1, None)
    (line,) = caplog.records
    assert len(vars(line)["tool"]) == len(vars(line)["clusters"]) == LONGEST_TEXT
