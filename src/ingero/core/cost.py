"""What waiting costs, in the currency of the rate table."""

import numpy as np
from numpy.typing import NDArray

SECONDS_PER_HOUR = 3600.0


def idle_cost(lag_s: float, ranks: int, usd_per_gpu_hour: float, gpus_per_rank: int = 1) -> float:
    """Return the money spent while `ranks` waited `lag_s` for one of them."""
    return lag_s * ranks * gpus_per_rank * usd_per_gpu_hour / SECONDS_PER_HOUR


def loss_per_hour(loss_share: float, usd_per_hour: float) -> float:
    """Return the money lost per hour by a job that could save `loss_share` of its time."""
    return loss_share * usd_per_hour


def barrier_idle_s(
    groups: NDArray[np.int64], lateness_ms: NDArray[np.float64], weight: NDArray[np.float32]
) -> float:
    """Return the seconds that ranks waited for the last rank of their group, each one added.

    A record with a weight stands for so many; a weight below 1 is unknown and counts as 1.
    """
    if not len(groups):
        return 0.0
    latest = np.full(int(groups.max()) + 1, -np.inf)
    np.maximum.at(latest, groups, lateness_ms)
    waited_ms = (latest[groups] - lateness_ms) * np.maximum(weight, 1.0)
    return float(waited_ms.sum()) / 1e3
