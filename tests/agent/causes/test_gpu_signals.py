"""Signals of a rank's GPU, by recorded values of NVML, and the causes that follow from them."""

import os
from collections import deque

import pytest
from tests.support.recorded_nvml import Gpu, RecordedNvml

from ingero.agent.causes.gpu_signals import XID_KEPT_S, GpuSignals
from ingero.contract.causes import CauseKind, Signal
from ingero.contract.verdict import CauseClass
from ingero.core.causes.answer import Seen, find_causes, summarise
from ingero.core.causes.ranking import Lateness

PID = os.getpid()
LATE = Lateness(share=0.25, cause_class=CauseClass.COMPUTE)


def causes(nvml: RecordedNvml) -> list[tuple[CauseKind, str]]:
    """Return what sets the GPU of local rank 0 apart from the others.

    Errors are those since a first reading, when there were none.
    """
    gpus = GpuSignals(lambda: nvml)
    errors, nvml.gpus[0].ecc = nvml.gpus[0].ecc, nvml.gpus[0].ecc and (0, 0)
    gpus.read(PID, 0, 5.0)
    nvml.gpus[0].ecc = errors
    mine, *others = (gpus.read(PID, local_rank, 10.0) for local_rank in range(len(nvml.gpus)))
    peers = {signal: summarise([other[signal] for other in others]) for signal in others[0]}
    found = find_causes(Seen(signals=mine), [], peers, LATE)
    return [(each.kind, each.text) for each in found]


@pytest.mark.parametrize(
    ("slow", "kind", "text"),
    [
        (
            Gpu(sm_clock=1410, throttle=0x80, power_mw=412_000),
            CauseKind.GPU_CLOCK,
            "SM clock 1410 MHz, peers 1980 MHz (power brake, 412 W, peers 640 W)",
        ),
        (
            Gpu(sm_clock=1305, throttle=0x20, temperature=89),
            CauseKind.GPU_CLOCK,
            "SM clock 1305 MHz, peers 1980 MHz (software thermal slowdown, 89 C, peers 62 C)",
        ),
        (Gpu(ecc=(3, 0)), CauseKind.GPU_MEMORY, "3 new uncorrected ECC errors, peers 0"),
        (
            Gpu(ecc=(0, 40_000)),
            CauseKind.GPU_MEMORY,
            "40000 new corrected ECC errors, peers 0",
        ),
        (
            Gpu(sm_clock=1650, throttle=0x04, power_mw=500_000),
            CauseKind.GPU_CLOCK,
            "SM clock 1650 MHz, peers 1980 MHz (power cap, 500 W, peers 640 W)",
        ),
        (Gpu(pcie=(8, 5)), CauseKind.PCIE, "PCIe link x8, peers x16"),
        (Gpu(pcie=(16, 1)), CauseKind.PCIE, "PCIe link of generation 1, peers 5"),
    ],
)
def test_recorded_values_are_named(slow: Gpu, kind: CauseKind, text: str) -> None:
    assert causes(RecordedNvml([slow, *[Gpu() for _ in range(7)]])) == [(kind, text)]


def test_an_error_of_the_driver_is_named_on_its_gpu_only() -> None:
    nvml = RecordedNvml([Gpu() for _ in range(8)], deque([(0, 79)]))
    assert causes(nvml) == [(CauseKind.GPU_ERROR, "the GPU reported Xid 79")]
    assert causes(RecordedNvml([Gpu() for _ in range(8)], deque([(3, 79)]))) == []


@pytest.mark.parametrize("xids", [[(0, 43)], [(0, 45)], [(gpu, 79) for gpu in range(8)]])
def test_an_error_of_a_program_or_of_all_gpus_sets_none_apart(xids: list[tuple[int, int]]) -> None:
    """A process of the job before this one that was killed says nothing about the GPU."""
    assert causes(RecordedNvml([Gpu() for _ in range(8)], deque(xids))) == []


def test_an_old_error_is_forgotten() -> None:
    gpus = GpuSignals(lambda: RecordedNvml([Gpu()], deque([(0, 79)])))
    assert gpus.read(PID, 0, 5.0)[Signal.XID] == 79.0
    assert gpus.read(PID, 0, 6.0 + XID_KEPT_S)[Signal.XID] == 0.0


def test_healthy_gpus_give_no_cause() -> None:
    gpus = [Gpu(sm_clock=1980 - 15 * (index % 2), temperature=60 + index) for index in range(8)]
    assert causes(RecordedNvml(gpus)) == []


@pytest.mark.parametrize(
    "healthy",
    [
        Gpu(sm_clock=345, throttle=0x01, power_mw=90_000, pcie=(16, 1)),  # it waits for its host
        Gpu(sm_clock=1950, throttle=0x04, power_mw=698_000, temperature=71),
        Gpu(temperature=84),
        Gpu(ecc=(0, 60)),
    ],
)
def test_healthy_variations_give_no_cause(healthy: Gpu) -> None:
    assert causes(RecordedNvml([healthy, *[Gpu() for _ in range(7)]])) == []


def test_errors_of_long_ago_explain_nothing_today() -> None:
    nvml = RecordedNvml([Gpu(ecc=(3, 0))])
    gpus = GpuSignals(lambda: nvml)
    assert gpus.read(PID, 0, 0.0)[Signal.ECC_ERRORS] == 0.0
    nvml.gpus[0].ecc = (5, 0)
    assert gpus.read(PID, 0, 10.0)[Signal.ECC_ERRORS] == 2.0
    assert gpus.read(PID, 0, 10.0 + XID_KEPT_S)[Signal.ECC_ERRORS] == 2.0
    assert gpus.read(PID, 0, 11.0 + 2 * XID_KEPT_S)[Signal.ECC_ERRORS] == 0.0
    nvml.gpus[0].ecc = (0, 0)
    assert gpus.read(PID, 0, 12.0 + 2 * XID_KEPT_S)[Signal.ECC_ERRORS] == 0.0


def test_errors_while_nobody_looked_are_not_new() -> None:
    nvml = RecordedNvml([Gpu(ecc=(3, 0))])
    gpus = GpuSignals(lambda: nvml)
    assert gpus.read(PID, 0, 0.0)[Signal.ECC_ERRORS] == 0.0
    nvml.gpus[0].ecc = (5, 0)
    assert gpus.read(PID, 0, 1.0 + 2 * XID_KEPT_S)[Signal.ECC_ERRORS] == 0.0


def test_what_a_gpu_does_not_support_is_left_out() -> None:
    nvml = RecordedNvml([Gpu(ecc=None, throttle=None)], has_events=False)
    found = GpuSignals(lambda: nvml).read(PID, 0, 0.0)
    assert set(found) == {
        Signal.SM_CLOCK, Signal.POWER, Signal.TEMPERATURE, Signal.PCIE_WIDTH,
        Signal.PCIE_GENERATION, Signal.XID,
    }  # fmt: skip


def test_the_gpu_of_a_process_is_where_the_driver_sees_it_else_that_of_its_local_rank() -> None:
    nvml = RecordedNvml([Gpu(), Gpu(sm_clock=1000, pids=(PID,)), Gpu(sm_clock=500)])
    gpus = GpuSignals(lambda: nvml)
    assert gpus.read(PID, 0, 0.0)[Signal.SM_CLOCK] == 1000
    assert gpus.read(1, 2, 0.0)[Signal.SM_CLOCK] == 500
    assert gpus.read(1, None, 0.0) == {}


def test_without_a_driver_there_are_no_signals() -> None:
    assert GpuSignals(lambda: None).read(PID, 0, 0.0) == {}


def test_the_gpu_of_a_rank_is_known_by_its_uuid() -> None:
    """Where the driver sees the process, else by the local rank; one GPU needs neither."""
    nvml = RecordedNvml([Gpu(), Gpu(pids=(PID,)), Gpu()])
    gpus = GpuSignals(lambda: nvml)
    assert gpus.uuid(PID, 0) == "GPU-1"
    assert gpus.uuid(PID + 1, 2) == "GPU-2"
    assert gpus.uuid(PID + 1, None) == ""
    assert GpuSignals(lambda: RecordedNvml([Gpu()])).uuid(PID + 1, None) == "GPU-0"
    assert GpuSignals(lambda: None).uuid(PID, 0) == ""
