"""A verdict that calls for an alert, and variations of it."""

import msgspec

from ingero.contract.verdict import CauseClass, Verdict, VerdictState

NOW_S = 1_700_000_000.0
SLOW = Verdict(
    episode="e1", state=VerdictState.STRAGGLER, node="n5", rank=5, job="j", loss=0.091,
    cause_class=CauseClass.HOST, usd_per_hour=12.5, since=NOW_S, evidence="20% slower",
    cause="its CPU quota", next_step="raise the quota",
)  # fmt: skip


def changed(verdict: Verdict = SLOW, **fields: object) -> Verdict:
    return msgspec.structs.replace(verdict, **fields)
