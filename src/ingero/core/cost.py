"""What waiting costs, in the currency of the rate table."""

SECONDS_PER_HOUR = 3600.0


def idle_cost(lag_s: float, ranks: int, usd_per_gpu_hour: float, gpus_per_rank: int = 1) -> float:
    """Return the money spent while `ranks` waited `lag_s` for one of them."""
    return lag_s * ranks * gpus_per_rank * usd_per_gpu_hour / SECONDS_PER_HOUR


def loss_per_hour(loss_share: float, usd_per_hour: float) -> float:
    """Return the money lost per hour by a job that could save `loss_share` of its time."""
    return loss_share * usd_per_hour
