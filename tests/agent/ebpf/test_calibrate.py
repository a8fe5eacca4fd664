"""F157: what a probe costs is measured as it will be attached."""

import platform

import numpy as np
import pytest

from ingero.agent.ebpf.calibrate import ASSUMED, calibrate
from ingero.agent.ebpf.layout import SLOT
from ingero.agent.ebpf.loader.links import Link, Probe
from ingero.agent.ebpf.slots import Recording


class Programs:
    """Attaches nothing and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def attach(self, path: str, probes: list[Probe], returns: list[Probe], pid: int) -> Link:
        self.asked.append((len(probes), len(returns)))
        return Link([])


class Table:
    def __init__(self) -> None:
        self.rows = np.zeros(4, SLOT)
        self.given_back: list[int] = []

    def take(self, pid: int, recording: Recording) -> int:
        return 3

    def give_back(self, slots: list[int]) -> None:
        self.given_back += slots


@pytest.mark.skipif(platform.machine() != "x86_64", reason="figures are assumed on other machines")
def test_entry_alone_is_measured_without_a_probe_on_the_return() -> None:
    """Where entries and returns are two links, a watched return costs as much as the entry."""
    programs, table = Programs(), Table()
    assert calibrate(programs, table).measured  # type: ignore[arg-type]
    assert programs.asked == [(1, 1), (1, 0), (1, 1), (1, 0)]
    assert table.given_back == [3]


def test_nothing_is_tried_on_ourselves_that_a_filter_would_kill_us_for(monkeypatch) -> None:
    monkeypatch.setattr("ingero.agent.ebpf.calibrate.returns_are_safe", lambda pid: False)
    programs = Programs()
    assert calibrate(programs, Table()) is ASSUMED  # type: ignore[arg-type]
    assert programs.asked == []
