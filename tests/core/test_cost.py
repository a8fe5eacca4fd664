"""What waiting costs."""

import pytest

from ingero.core.cost import idle_cost, loss_per_hour


def test_f075_lag_becomes_money() -> None:
    """F075, vector V8: 63 ranks wait 80 ms at 2.49 an hour."""
    once = idle_cost(0.080, 63, 2.49)
    assert once == pytest.approx(0.003486, abs=1e-6)
    assert once * 3600 == pytest.approx(12.5496, abs=1e-6)
    assert idle_cost(0.080, 63, 2.49, gpus_per_rank=4) == pytest.approx(4 * once)


def test_vector_v8b() -> None:
    assert idle_cost(0.290, 7, 12.29) == pytest.approx(0.0069302, abs=1e-6)


def test_a_lost_share_is_paid_by_every_gpu() -> None:
    assert loss_per_hour(0.25, 64 * 2.0) == 32.0
