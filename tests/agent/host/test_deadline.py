"""A driver that hangs: every question has a deadline, and the answer is that it does not answer."""

import threading
import time
from collections.abc import Iterator

import pytest
from tests.support.recorded_nvml import Gpu, RecordedNvml

from ingero.agent.causes.gpu_signals import GpuSignals
from ingero.agent.host.deadline import Deadline
from ingero.agent.host.gpu import Gpus
from ingero.contract.causes import Signal
from ingero.errors import Unavailable

SHORT_S = 0.05


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Set by a test, and at its end in any case, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


def test_a_call_that_hangs_is_left_behind_and_others_are_refused_at_once(
    released: threading.Event,
) -> None:
    deadline = Deadline("the driver", SHORT_S)
    assert deadline.call(lambda: 7) == 7
    with pytest.raises(Unavailable, match=r"does not answer within 0\.05 s"):
        deadline.call(released.wait)
    began = time.perf_counter()
    with pytest.raises(Unavailable, match="an earlier question still hangs"):
        deadline.call(lambda: 7)
    assert time.perf_counter() - began < SHORT_S
    released.set()
    assert wait_for(deadline) == 7


def wait_for(deadline: Deadline) -> int:
    until_s = time.monotonic() + 5
    while True:
        try:
            return deadline.call(lambda: 7)
        except Unavailable:
            assert time.monotonic() < until_s


def test_errors_of_a_call_are_those_of_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        Deadline("the driver", SHORT_S).call(lambda: 1 // 0)


def test_a_driver_that_hangs_when_it_starts_is_the_reason_why_no_gpu_is_seen(
    released: threading.Event,
) -> None:
    gpus = Gpus(start=released.wait, seconds=SHORT_S)
    for read in (gpus.memory, gpus.info, gpus.throttle):
        with pytest.raises(Unavailable, match="the NVIDIA driver does not answer"):
            read()


def test_signals_are_missing_while_the_driver_hangs_and_come_back(
    released: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(RecordedNvml):
        def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
            released.wait()
            return super().nvmlDeviceGetPowerUsage(handle)

    signals = GpuSignals(lambda: Hanging([Gpu()]), seconds=SHORT_S)
    assert [signals.read(1, 0, 1.0) for _ in range(3)] == [{}, {}, {}]
    assert [record.message for record in caplog.records] == ["gpu_driver_silent"]
    released.set()
    until_s = time.monotonic() + 5
    while not (found := signals.read(1, 0, 2.0)):
        assert time.monotonic() < until_s
    assert found[Signal.POWER] == 640.0
