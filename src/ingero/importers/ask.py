"""Blame of whatever was read: the best source present answers, the others are mentioned."""

from dataclasses import replace

from ingero.contract.collective import CollectiveSource
from ingero.core.blame.answer import Answer
from ingero.core.blame.hang import blame_hang
from ingero.core.blame.records import blame_records
from ingero.core.blame.steps import blame_steps
from ingero.core.collectives.columns import from_records
from ingero.errors import MalformedInput
from ingero.importers.detect import Inputs
from ingero.importers.flight_recorder import comm_hash


def blame_inputs(inputs: Inputs) -> Answer:
    """Return one answer for all inputs, which must belong to one job."""
    if len(inputs.steps) > 1:
        names = ", ".join(str(path) for path, _ in inputs.steps[:3])
        raise MalformedInput(
            f"several step traces ({names}): each is a job of its own; ask about one at a time"
        )
    if inputs.steps:
        beside = [str(source) for source in CollectiveSource if inputs.records.get(source)]
        unused = f"present, but not used: {', '.join(beside)}" if beside else None
        return _with_notes(blame_steps(inputs.steps[0][1]), inputs, unused)
    timed = [source for source in CollectiveSource if inputs.records.get(source)]
    flight = CollectiveSource.FLIGHT_RECORDER
    if inputs.progress:
        world = inputs.world or len(inputs.progress)
        hang = blame_hang(
            list(inputs.progress.values()), inputs.groups, world, timed=flight in timed
        )
        if hang is not None:
            return _with_notes(hang, inputs)
    if timed:
        most = max(_coverage(inputs, source) for source in timed)
        # The enumeration is ordered, the best source first.
        source = next(source for source in timed if _coverage(inputs, source) == most)
        labels = {comm_hash(key): group.desc for key, group in inputs.groups.items() if group.desc}
        columns = from_records(inputs.records[source])
        answer = blame_records(
            columns, source not in inputs.inexact, str(source), inputs.world, labels
        )
        return _with_notes(
            answer,
            inputs,
            *(_beside(inputs, other, most) for other in timed if other is not source),
        )
    why = (
        "nothing is stuck, and the dumps contain no GPU durations: "
        "run the job with TORCH_NCCL_ENABLE_TIMING=1"
    )
    return _with_notes(Answer(source=str(flight), not_sure=why, gpus=inputs.world or 0), inputs)


def _coverage(inputs: Inputs, source: CollectiveSource) -> int:
    return len({record.global_rank for record in inputs.records[source]})


def _beside(inputs: Inputs, source: CollectiveSource, most: int) -> str:
    ranks = _coverage(inputs, source)
    return (
        f"present, but less exact: {source}"
        if ranks == most
        else f"present, but only for {ranks} of {most} ranks: {source}"
    )


def _with_notes(answer: Answer, inputs: Inputs, *more: str | None) -> Answer:
    return replace(
        answer, notes=(*answer.notes, *(note for note in more if note), *inputs.problems)
    )
