"""The clock of the demo: late, then faster, then right; and what waits for it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingero.sim import hurry
from ingero.sim.hurry import HurriedClock


def test_it_is_late_until_it_is_told_to_hurry_and_then_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(hurry, "_real_time", lambda: now_s)
    clock, other = (HurriedClock(tmp_path / "clock", 24.0, 4.0) for _ in range(2))
    assert clock.now_s() == 976.0
    assert clock.wait_s(2.0) == 2.0, "it does not hurry yet"
    clock.go()
    assert other.wait_s(2.0) == 0.5, "all processes share the sign"
    assert other.wait_s(36.0) == pytest.approx(32.0 / 4 + 4.0), "the last part in real seconds"
    now_s = 1004.0
    assert clock.now_s() == 992.0
    now_s = 1008.0
    assert clock.now_s() == 1008.0
    now_s = 2000.0
    assert (clock.now_s(), clock.wait_s(3.0)) == (2000.0, 3.0)


def test_timers_of_a_process_follow_it(tmp_path: Path) -> None:
    """Eight seconds of its clock pass in about two."""
    module = tmp_path / "sleeper.py"
    module.write_text(
        "import asyncio, time\n"
        "before = time.monotonic()\n"
        "asyncio.run(asyncio.sleep(8))\n"
        "print(time.monotonic() - before)\n"
    )
    HurriedClock(tmp_path / "clock", 600.0, 4.0).go()
    began_s = time.monotonic()
    command = [sys.executable, "-m", "ingero.sim.hurry", str(tmp_path / "clock"), "600", "4"]
    done = subprocess.run(
        [*command, "sleeper"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert time.monotonic() - began_s < 7.0
    assert float(done.stdout) >= 8.0
