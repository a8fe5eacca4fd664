"""The answer of `ingero blame` on a terminal: who, then why, the cost and what to do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ingero.cli.show.notes import merged_notes
from ingero.cli.show.table import aligned, coloured, columns_of, printable
from ingero.cli.show.wrap import on_screen
from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import LATER, NEXT_STEPS, Answer, Culprit
from ingero.core.counted import counted
from ingero.core.durations import readable_seconds

_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31;1", "32;1", "33;1", "36"
_INDENT = " " * 9  # what stands behind `  where  `
_CLASS_WORDS = {
    CauseClass.COMPUTE: "its GPU is slow",
    CauseClass.HOST: "its host keeps the GPU waiting",
    CauseClass.NETWORK: "its link is slow",
    CauseClass.HANG: "the job hangs on it",
    CauseClass.UNKNOWN: "it is slow; whether host or GPU is the cause is unknown",
}
_NOBODY = {
    CauseClass.STRUCTURAL: "No node is to blame: the pipeline stages are unequal.",
    CauseClass.DATA_IMBALANCE: "No node is to blame: the work is unequal, the slowest rank changes "
    "from step to step.",
    CauseClass.NETWORK: "A link is slow, and no single rank can be named for it.",
    CauseClass.HANG: "The job hangs, and no rank can be named for it.",
}


def print_answer(answer: Answer, price: float | None, read: str, picture: Path | None) -> None:
    """Print the whole answer for a reader."""
    answer = _printable(answer)
    for culprit in answer.culprits:
        _print_culprit(culprit)
    for culprit in answer.late:
        print(coloured(f"{_named(culprit)}: late, but the job loses nothing", _CYAN))
    if not answer.culprits:
        colour = _YELLOW if answer.cause or answer.not_sure else _GREEN
        print(coloured(_nobody(answer), colour))
        if answer.cause in NEXT_STEPS:
            print(on_screen(f"  next   {NEXT_STEPS[answer.cause]}", _INDENT))
    if answer.not_sure:
        print(coloured(on_screen(f"Not sure, because {answer.not_sure}", "  "), "33"))
    _print_costs(answer, price)
    printed = {f"{culprit.worker}: {_reason(culprit)}" for culprit in answer.culprits}
    evidence = [line for line in answer.evidence if line not in printed]
    if evidence:
        print(coloured("\nEvidence", _BOLD))
        for line in evidence:
            print(on_screen(f"  · {line}", "    "))
    for note in merged_notes(answer.notes):
        print(coloured(on_screen(f"  note: {note}", "    "), _DIM))
    print()
    print(coloured(on_screen(f"read: {read}; source: {answer.source}", "  "), _DIM))
    if picture is not None:
        print(f"picture: {picture}")


def _printable(answer: Answer) -> Answer:
    """Return the answer with printable texts; nodes and groups are named by the recorded job."""

    def shown(text: str | None) -> str | None:
        return None if text is None else printable(text)

    return replace(
        answer,
        source=printable(answer.source),
        not_sure=shown(answer.not_sure),
        evidence=tuple(map(printable, answer.evidence)),
        notes=tuple(map(printable, answer.notes)),
        culprits=tuple(_printable_culprit(culprit) for culprit in answer.culprits),
        late=tuple(_printable_culprit(culprit) for culprit in answer.late),
    )


def _printable_culprit(culprit: Culprit) -> Culprit:
    def shown(text: str | None) -> str | None:
        return None if text is None else printable(text)

    return replace(
        culprit,
        worker=printable(culprit.worker),
        node=shown(culprit.node),
        collective=shown(culprit.collective),
        detail=printable(culprit.detail),
        next_step=printable(culprit.next_step),
    )


def _nobody(answer: Answer) -> str:
    if answer.cause:
        return _NOBODY.get(answer.cause, "Nobody can be blamed.")
    return "Nobody can be named." if answer.not_sure else "Nobody is slow."


def _named(culprit: Culprit) -> str:
    where = f" on {culprit.node}" if culprit.node else ""
    rank = (
        f" (rank {culprit.rank})"
        if culprit.rank is not None and str(culprit.rank) not in culprit.worker.split()
        else ""
    )
    return f"{culprit.worker}{rank}{where}"


def _loss(culprit: Culprit) -> str:
    """Return what the job loses while the worker is slow, and in which steps that is."""
    assert culprit.loss is not None
    bound, error = ("at most ", "") if culprit.at_most else ("", f" ±{culprit.loss_error or 0:.1%}")
    often = f", every {culprit.period} steps" if culprit.period else ""
    when = f", steps {culprit.steps[0]}–{culprit.steps[1]}" if culprit.steps else ""
    return f"  loss   {bound}{culprit.loss:.1%}{error} of the job while it is slow{often}{when}"


def _print_culprit(culprit: Culprit) -> None:
    what = _CLASS_WORDS.get(culprit.cause, str(culprit.cause))
    print(coloured(f"{_named(culprit)}: ", _RED) + coloured(what, _BOLD))
    if culprit.loss is not None:
        print(on_screen(_loss(culprit), _INDENT))
    if culprit.link is not None:
        print(on_screen(f"  link   {culprit.link}", _INDENT))
    if culprit.excess is not None and culprit.error is not None:
        is_late = culprit.detail.startswith(LATER)
        over = "of a step later than its peers" if is_late else "own time over its peers"
        slower = f"{culprit.excess:+.1%} ±{culprit.error:.1%} {over}"
        extra = f", {_time(culprit.excess_s)} a step" if culprit.excess_s else ""
        often = f", every {culprit.period} steps" if culprit.period else ""
        print(on_screen(f"  excess {slower}{extra}{often}", _INDENT))
    if culprit.collective:
        print(on_screen(f"  where  {culprit.collective}", _INDENT))
    if culprit.detail:
        print(on_screen(f"  why    {_reason(culprit)}", _INDENT))
    print(f"  sure   {culprit.confidence:.0%} ({culprit.cause})")
    print(on_screen(f"  next   {culprit.next_step}", _INDENT))


def _reason(culprit: Culprit) -> str:
    """Return the detail without its leading key word, which is for programs."""
    return culprit.detail.split(": ", 1)[-1] if culprit.cause is CauseClass.HANG else culprit.detail


def _print_costs(answer: Answer, price: float | None) -> None:
    if answer.step_time_s is None:
        return
    print()
    line = f"step   {_time(answer.step_time_s)}"
    if answer.loss_s and answer.loss_s > 0:
        without, change = answer.step_time_s - answer.loss_s, -answer.loss_s / answer.step_time_s
        line += f"; without this {_time(without)} ({change:+.1%})"
    print(on_screen(line, " " * 7))
    if answer.loss_gpu_hours:
        steps, gpus = counted(answer.steps, "recorded step"), counted(answer.gpus, "GPU")
        print(
            on_screen(f"loss   {answer.loss_gpu_hours:.3g} GPU hours in {steps} on {gpus}", " " * 7)
        )
        dollars = answer.usd_per_hour(price)
        money = (
            f"at most ${dollars:,.2f} per hour of running"
            if dollars is not None
            else "give --rate for dollars, or a model and provider of `ingero rates show`"
        )
        print(on_screen(f"price  {money}", " " * 7))


def print_fixes(answer: Answer, rows: list[dict[str, Any]], price: float | None) -> None:
    """Print the what-if table."""
    answer = _printable(answer)
    if answer.step_time_s is None or not rows:
        why = (
            "the job hangs; `ingero blame` shows what it waits for"
            if answer.cause is CauseClass.HANG
            else answer.not_sure
        )
        print(f"Nothing to save was found{': ' + why if why else '.'}")
        return
    print(f"step now {_time(answer.step_time_s)} on {answer.gpus} GPUs\n")
    lines = [["fix", "step time", "saved", "share", "GPU hours/day", "$/h at most"]]
    for row in rows:
        dollars = "–" if row["usd_per_hour"] is None else f"{row['usd_per_hour']:,.2f}"
        lines.append(
            [
                printable(row["fix"]),
                _time(row["step_time"]),
                _time(row["saved"]),
                f"{row['saved_share']:.1%}",
                f"{row['gpu_hours_per_day']:,.1f}",
                dollars,
            ]
        )
    widths = [max(map(columns_of, column)) for column in zip(*lines, strict=True)]
    for number, (fix, *figures) in enumerate(lines):
        right = (
            " " * (width - columns_of(text)) + text
            for text, width in zip(figures, widths[1:], strict=True)
        )
        line = aligned([fix, *right], widths)
        print(line if number else coloured(line, _BOLD))
    if price is None:
        advice = "give --rate for dollars, or a model and provider of `ingero rates show`"
        print(f"\n{on_screen(advice, '  ')}")


def _time(seconds: float | None) -> str:
    return "unknown" if seconds is None else readable_seconds(seconds)
