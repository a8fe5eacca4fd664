"""What a report says about one rank: where it runs, and its own times."""

from dataclasses import dataclass

from ingero.contract.collective import CollectiveSource
from ingero.contract.measurements.own_time import OwnTime
from ingero.core.collectives.step_points import StepPoints


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The GPU and the pod of a rank, as others call them; empty where not known."""

    gpu_uuid: str = ""
    pod: str = ""


def own_times_of(points: StepPoints, source: CollectiveSource) -> tuple[OwnTime, ...]:
    """Return the own times of points, one for each."""
    times = points.times
    return tuple(
        OwnTime(
            step=None if step < 0 else step,
            count=points.count,
            own_ms=own * 1e3,
            idle_ms=idle * 1e3,
            span_ms=span * 1e3,
            end_ns=end,
            source=source,
        )
        for step, own, idle, span, end in zip(
            times.step.tolist(),
            times.own_s.tolist(),
            times.idle_s.tolist(),
            times.span_s.tolist(),
            times.end_ns.tolist(),
            strict=True,
        )
    )
