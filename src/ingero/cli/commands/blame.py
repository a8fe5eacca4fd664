"""`ingero blame` and `ingero whatif`: who slows a recorded job down, and what a fix would save."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingero.cli.exit_status import CANNOT_TELL, FINE, SLOW, Question
from ingero.cli.params import AS_JSON, stacked
from ingero.cli.recordings.ask import ask_blame
from ingero.cli.show.table import print_json, printable
from ingero.core.cost import loss_per_hour
from ingero.errors import Unavailable

if TYPE_CHECKING:
    from ingero.core.blame.answer import Answer, Culprit

DUMP_TIMEOUT_S = 15.0
_PATHS = click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH..."
)
_FORMATS = """Files are recognised by their content: PyTorch Flight Recorder dumps (pickle or
    JSON), NCCL Inspector JSON, Kineto and Chrome traces (.json, .json.gz), step traces (Parquet),
    collective records (CSV), saved rings of the NCCL plugin, and trace databases. Folders, tar
    archives and mixtures are accepted. A missing rank is reported and is not an error."""


_price_options = stacked(
    click.option(
        "--rate",
        type=click.FloatRange(min=0),
        help="Price of a GPU hour in dollars; takes precedence over the rate table.",
    ),
    click.option(
        "--provider", default=None, help="Provider in the rate table: a cloud, or `onprem`."
    ),
    click.option(
        "--gpu-model", default=None, help="GPU model in the rate table, for example H100."
    ),
)


@click.command(
    "blame",
    cls=Question,
    help=f"""Name the rank that a recorded job waits for.

    The answer gives node, rank, collective, class of the cause, certainty, cost and the next step,
    or "not sure" with the reason.

    {_FORMATS}

    docs/how-to/blame-a-trace.md shows how to record a trace.

    The exit status is 0 when nobody is slow, 1 when somebody is and 3 when the recording does not
    tell.

    \b
    Examples:
      ingero blame traces/
      ingero blame _dump_* --json
      ingero blame trace.parquet --picture slow.svg --rate 2.5
      ingero blame --live""",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH...]")
@AS_JSON
@click.option(
    "--live", is_flag=True, help="First ask the PyTorch processes of this machine for their dumps."
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw a heat map of workers and steps into this .svg or .png file.",
)
@_price_options
def blame(
    paths: tuple[Path, ...],
    as_json: bool,
    live: bool,
    picture: Path | None,
    rate: float | None,
    provider: str | None,
    gpu_model: str | None,
) -> int:
    if not paths and not live:
        raise click.UsageError("name files or folders, or ask running processes with --live")
    if picture is not None and picture.suffix.lower() not in (".svg", ".png"):
        raise click.UsageError(f"--picture {picture}: the name must end in .svg or .png")
    dumps, problems = _ask_processes() if live else ([], [])
    found = ask_blame(paths, wants_heat=picture is not None, dumps=dumps, problems=problems)
    answer = found.answer
    price = find_rate(rate, provider, gpu_model)
    if picture is not None and answer.heat is not None:
        from ingero.cli.show.heatmap import write_picture

        write_picture(picture, answer, _title(paths))
    elif picture is not None:
        print(f"no picture: a {answer.source} has no steps to draw", file=sys.stderr)
    if as_json:
        print_json(answer_json(answer, price))
        return _exit_status(answer)
    from ingero.cli.show.blame import print_answer

    print_answer(
        answer, price, _read_line(found.kinds), picture if answer.heat is not None else None
    )
    return _exit_status(answer)


def _exit_status(answer: "Answer") -> int:
    if answer.culprits or answer.cause is not None:
        return SLOW
    return CANNOT_TELL if answer.not_sure else FINE


@click.command(
    "whatif",
    help=f"""Show what each fix would save.

    The recording is replayed with one slow worker, and with all of them, at the pace of their
    peers. For each fix the command shows step time, saved GPU hours and money.

    {_FORMATS}

    \b
    Examples:
      ingero whatif trace.parquet --rate 2.5
      ingero whatif traces/ --gpu-model H100 --provider aws --json""",
)
@_PATHS
@AS_JSON
@_price_options
def whatif(
    paths: tuple[Path, ...],
    as_json: bool,
    rate: float | None,
    provider: str | None,
    gpu_model: str | None,
) -> None:
    answer = ask_blame(paths).answer
    price = find_rate(rate, provider, gpu_model)
    if as_json:
        print_json({"step_time": answer.step_time_s, "fixes": fixes_json(answer, price)})
        return
    from ingero.cli.show.blame import print_fixes

    print_fixes(answer, fixes_json(answer, price), price)


def _ask_processes() -> tuple[list[tuple[int, bytes]], list[str]]:
    """Ask the PyTorch processes of this machine; return dumps by rank, and who gave none."""
    import asyncio

    from ingero.agent.processes.flight_recorder import DumpOutcome, find_targets, request_dumps

    targets = find_targets()
    if not targets:
        raise Unavailable(
            "no process here listens for dump requests: start the job with "
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE, "
            "TORCH_FR_BUFFER_SIZE and TORCH_NCCL_ENABLE_TIMING set (`ingero run --print-env`)"
        )
    dumps, problems = [], []
    for reply in asyncio.run(request_dumps(targets, DUMP_TIMEOUT_S)):
        if reply.outcome is DumpOutcome.WRITTEN:
            dumps.append((reply.target.rank, reply.data))
        else:
            problems.append(f"rank {reply.target.rank}: {reply.outcome}: {reply.detail}")
    return dumps, problems


def find_rate(rate: float | None, provider: str | None, gpu_model: str | None) -> float | None:
    """Return dollars per GPU hour: the given rate, else the one of the rate table.

    What was given and has no price is told, because a missing price would look like an oversight.
    """
    if rate is not None or (gpu_model is None and provider is None):
        return rate
    if gpu_model is None:
        print("--provider alone gives no price: add --gpu-model, or --rate", file=sys.stderr)
        return None
    from ingero.config.rates import load_rates

    found = load_rates().guess(provider, gpu_model)
    if found is None:
        where = f" at {printable(provider)}" if provider else ""
        print(
            f"no price is known for {printable(gpu_model)}{where}: `ingero rates show` lists the "
            "known ones, --rate gives one",
            file=sys.stderr,
        )
    return found


def answer_json(answer: "Answer", price: float | None) -> dict[str, Any]:
    """Return the answer with the documented keys."""
    return {
        "culprits": [_culprit_json(culprit) for culprit in answer.culprits],
        "late": [_culprit_json(culprit) for culprit in answer.late],
        "class": str(answer.cause) if answer.cause else None,
        "not_sure": answer.not_sure,
        "evidence": list(answer.evidence),
        "notes": list(answer.notes),
        "step_time": answer.step_time_s,
        "ideal_step_time": answer.ideal_step_time_s,
        "loss_gpu_hours": answer.loss_gpu_hours,
        "usd_per_hour": answer.usd_per_hour(price),
        "gpus": answer.gpus,
        "steps": answer.steps,
        "source": answer.source,
        **answer.shares,
    }


def _culprit_json(culprit: "Culprit") -> dict[str, Any]:
    first, last = culprit.steps or (None, None)
    began, ended = culprit.times or (None, None)
    return {
        "rank": culprit.rank,
        "node": culprit.node,
        "worker": culprit.worker,
        "class": str(culprit.cause),
        "loss": culprit.loss,
        "loss_error": culprit.loss_error,
        "at_most": culprit.at_most,
        "first_step": first,
        "last_step": last,
        "from": began,
        "to": ended,
        "link": culprit.link,
        "excess": culprit.excess,
        "error": culprit.error,
        "confidence": culprit.confidence,
        "excess_s": culprit.excess_s,
        "period": culprit.period,
        "collective": culprit.collective,
        "detail": culprit.detail,
        "next": culprit.next_step,
    }


def fixes_json(answer: "Answer", price: float | None) -> list[dict[str, Any]]:
    """Return one row per fix, largest saving first."""
    rows = []
    for fix in answer.fixes:
        share = fix.saved_s / answer.step_time_s if answer.step_time_s else 0.0
        rows.append(
            {
                "fix": fix.what,
                "step_time": fix.step_time_s,
                "saved": fix.saved_s,
                "saved_share": share,
                "gpu_hours_per_day": answer.gpus * share * 24,
                "usd_per_hour": None
                if price is None
                else loss_per_hour(share, answer.gpus * price),
            }
        )
    return rows


def _title(paths: tuple[Path, ...]) -> str:
    name = paths[0].resolve().name if paths else "now"
    return name if len(paths) < 2 else f"{name} and {len(paths) - 1} more"


def _read_line(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in kinds.items())
