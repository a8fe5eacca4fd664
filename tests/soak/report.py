"""What a run has to say: one table over time, the slopes, and whether it passed."""

from collections.abc import Iterator
from itertools import groupby
from statistics import median

from tests.soak.ledger import BATCH, false_names, missing_names
from tests.soak.run import HARNESS, Outcome
from tests.soak.sampling import Sample
from tests.soak.services import STORE_MEMORY_MIB
from tests.soak.trend import MINUTE_S, Finding, Trend, medians_by_bin, trend_of
from tests.soak.watch import NODE_STATUS, RANK_VERDICT

ROWS = 12
BUFFER_LIMIT_MIB = STORE_MEMORY_MIB // 2
MEASURES = {"memory": lambda s: float(s.held_bytes), "file handles": lambda s: float(s.handles)}
NOT_JUDGED = (HARNESS, "agents-2")  # not a service; killed on purpose until the end


def table(outcome: Outcome) -> str:
    """Return memory, handles, threads and disk of each process over time, as a Markdown table.

    A row holds the medians of the minute that ends there.
    """
    names = list(dict.fromkeys(each.name for each in outcome.samples))
    lines = ["| minute | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    step_s = outcome.plan.length_s / ROWS
    for row in range(1, ROWS + 1):
        at_s = row * step_s
        from_s = at_s - min(step_s, MINUTE_S)
        cells = [_cell(outcome.samples, name, from_s, at_s) for name in names]
        lines.append(f"| {at_s / 60:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(samples: list[Sample], name: str, from_s: float, until_s: float) -> str:
    """Return the medians of the life of a process at the end of a period."""
    own = [s for s in samples if s.name == name and from_s <= s.at_s <= until_s]
    if not own:
        return "–"
    life = [s for s in own if s.pid == own[-1].pid]
    rss, handles, threads, disk = (
        median(getattr(s, key) for s in life)
        for key in ("rss_bytes", "handles", "threads", "disk_bytes")
    )
    text = f"{rss / 2**20:.1f} · {handles:.0f} · {threads:.0f}"
    return text + (f" · {disk / 2**20:.0f}" if disk else "")


def trends(outcome: Outcome) -> Iterator[tuple[str, str, float, Trend]]:
    """Yield process, measure, level and trend in the judged half, of the life that ends it."""
    ordered = sorted(outcome.samples, key=lambda s: (s.name, s.at_s))
    for name, group in groupby(ordered, key=lambda s: s.name):
        if name in NOT_JUDGED:
            continue
        found = [s for s in group if s.at_s >= outcome.plan.judged_from_s]
        found = [s for s in found if s.pid == found[-1].pid]
        for measure, value in MEASURES.items():
            values = [value(s) for s in found]
            if values:
                yield name, measure, median(values), trend_of([s.at_s for s in found], values)


def cpu_lines(outcome: Outcome) -> Iterator[str]:
    """Yield the mean share of a core that each process used."""
    for name in dict.fromkeys(s.name for s in outcome.samples):
        spent_s = 0.0
        for _, life in groupby((s for s in outcome.samples if s.name == name), lambda s: s.pid):
            spent_s += list(life)[-1].cpu_s
        yield f"{name} {spent_s / outcome.plan.length_s:.1%}"


def problems(outcome: Outcome) -> list[str]:
    """Return why a run failed; nothing when it passed."""
    plan, account = outcome.plan, outcome.account
    found = [
        f"{name} has {trend.slope:.1%} more {measure} every ten minutes"
        for name, measure, _, trend in trends(outcome)
        if trend.finding is Finding.RISING
    ]
    found += _broken_lives(outcome)
    if not account.is_right:
        found.append(f"acknowledged events are not stored as they were sent: {account}")
    if outcome.behind:
        found.append(f"Echo does not load what it acknowledged: {outcome.behind} events waited")
    wrong = false_names(outcome.named, plan.straggler)
    found += sorted({f"{each.node} was named and was not slow ({each.where})" for each in wrong})
    expected = [NODE_STATUS] + ([RANK_VERDICT] if plan.expects_rank else [])
    found += [
        f"{plan.straggler.node} was slow and not named: {where}"
        for where in missing_names(outcome.named, plan.straggler, expected)
    ]
    if max(_buffers(outcome), default=0.0) > BUFFER_LIMIT_MIB:
        found.append(f"the store caches more than {BUFFER_LIMIT_MIB} MiB")
    found += [f"Fleet did not forward {n} requests: {why}" for why, n in outcome.dropped.items()]
    return found + [f"{name} ended on its own" for name in outcome.ended]


def _buffers(outcome: Outcome) -> list[float]:
    """Return the medians in the judged half of what the store caches, in MiB, minute by minute."""
    own = [s for s in outcome.samples if s.buffer_bytes and s.at_s >= outcome.plan.judged_from_s]
    medians = medians_by_bin([s.at_s for s in own], [s.buffer_bytes / 2**20 for s in own])
    return [size for _, size in medians]


def _broken_lives(outcome: Outcome) -> Iterator[str]:
    """Yield services that were replaced or never seen in the half in which nobody kills them."""
    judged = [s for s in outcome.samples if s.at_s >= outcome.plan.judged_from_s]
    for name in outcome.services:
        if name not in {s.name for s in judged}:
            yield f"{name} was not seen in the second half"
    for name in dict.fromkeys(s.name for s in judged):
        lives = {s.pid for s in judged if s.name == name}
        if name not in NOT_JUDGED and len(lives) > 1:
            yield f"{name} was replaced {len(lives) - 1} times in the second half"


def report(outcome: Outcome) -> str:
    """Return everything that `make soak` prints at the end."""
    account = outcome.account
    lines = ["RSS in MiB · file handles · threads · disk in MiB", "", table(outcome), ""]
    lines += ["| process | measure | level | in ten minutes | 95 % interval | |", "|---" * 6 + "|"]
    for name, measure, level, trend in trends(outcome):
        shown = f"{level / 2**20:.1f} MiB" if measure == "memory" else f"{level:g}"
        lines.append(
            f"| {name} | {measure} | {shown} | {trend.slope:+.2%} | {trend.low:+.2%} to "
            f"{trend.high:+.2%} | {trend.finding.value} |"
        )
    named = sorted({f"{each.node} ({each.where})" for each in outcome.named})
    lines += [
        "",
        f"Acknowledged events: {account.acknowledged * BATCH}, of which {account.lost * BATCH} "
        f"lost, {account.doubled * BATCH} doubled, {account.changed * BATCH} changed; "
        f"{outcome.retries} requests were repeated; Echo stores {outcome.stored} events.",
        f"Fleet forwarded {outcome.forwarded} requests since its last start and dropped "
        f"{sum(outcome.dropped.values())}.",
        f"Named: {', '.join(named) or 'nobody'}.",
        f"CPU, as a share of one core: {', '.join(cpu_lines(outcome))}.",
    ]
    if cached := _buffers(outcome):
        lines.append(
            f"The store cached {cached[0]:.0f} MiB of its database in the middle and "
            f"{cached[-1]:.0f} MiB at the end; the limit is {BUFFER_LIMIT_MIB} MiB."
        )
    wrong = problems(outcome)
    return "\n".join(
        [*lines, "", *(f"FAIL: {each}" for each in wrong), *([] if wrong else ["PASS"])]
    )
