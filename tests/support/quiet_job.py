"""A recorded job in which nobody is slow, and what fixes would save in it."""

from tests.support.recorded_jobs import Job, record

from ingero.core.blame.record_fixes import Fixer
from ingero.core.blame.record_steps import measure_steps
from ingero.core.collectives.columns import Collectives, from_records


def quiet_job(steps: int = 12, **slow: float) -> Collectives:
    """Return a quiet job of eight ranks; a micro-batch takes 5 ms, and a step has two."""
    gpus = {int(rank.removeprefix("rank")): share for rank, share in slow.items()}
    return from_records(record(Job(noise=0.0, chronic=0.0, steps=steps, slow_gpu=gpus)))


def fixer(rows: Collectives, exact_ends: bool = True) -> Fixer:
    return Fixer(rows, measure_steps(rows, exact_ends), exact_ends)
