"""Measure what a probed call costs on this machine, in this process, with the real programs.

A few bytes of machine code in an anonymous file are probed and called in a loop. The kernel
emulates some first instructions (push, nop) and single-steps the others, which costs ten times as
much on some machines, so both are measured.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero.agent.ebpf.attach import CallPrograms
from ingero.agent.ebpf.layout import MODE_ENTRY, MODE_FULL, cookie_of
from ingero.agent.ebpf.loader.links import Probe
from ingero.agent.ebpf.loader.syscalls import MACHINE
from ingero.agent.ebpf.slots import Recording, SlotTable
from ingero.agent.processes.discover import returns_are_safe
from ingero.errors import Unavailable

_PUSH_AT, _SUB_AT, _LOOP_AT, _CODE_BYTES = 0, 32, 64, 4096
_CODE: Final = {
    _PUSH_AT: bytes.fromhex("555dc3"),  # push rbp; pop rbp; ret
    _SUB_AT: bytes.fromhex("4883ec084883c408c3"),  # sub rsp,8; add rsp,8; ret
    # rdi: function, rsi: number of calls. push rbx; push r12; mov rbx,rsi; mov r12,rdi;
    # again: call r12; dec rbx; jnz again; pop r12; pop rbx; ret
    _LOOP_AT: bytes.fromhex("534154" "4889f3" "4989fc" "41ffd4" "48ffcb" "75f8" "415c5bc3"),
}  # fmt: skip
_ROUNDS: Final = 5
_CALLS: Final = 1000
_STEPPED_CALLS: Final = 200
_QUIET_FUNCTION: Final = 0  # any function number: nothing is recorded, arguments are not read


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """Nanoseconds a probe adds to a call; `measured` is False where the figures are assumed."""

    full_ns: float
    entry_ns: float
    stepped_full_ns: float
    stepped_entry_ns: float
    measured: bool

    def of(self, first_bytes: bytes) -> tuple[float, float]:
        """Return (entry and return, entry only) for a function that starts with these bytes."""
        if is_emulated(first_bytes):
            return self.full_ns, self.entry_ns
        return self.stepped_full_ns, self.stepped_entry_ns


# higher than what was measured on real machines
ASSUMED: Final = ProbeCost(2000.0, 1000.0, 4000.0, 3000.0, measured=False)


def is_emulated(first_bytes: bytes) -> bool:
    """Return whether the kernel emulates this first instruction.

    On aarch64 every instruction is stepped out of line at the same cost.
    """
    if MACHINE != "x86_64":
        return True
    push = 0x50 <= first_bytes[0] <= 0x57 or (
        first_bytes[0] == 0x41 and 0x50 <= first_bytes[1] <= 0x57
    )
    return push or first_bytes.startswith((b"\x0f\x1f\x44\x00\x00", b"\x90", b"\xe9", b"\xeb"))


def calibrate(programs: CallPrograms, table: SlotTable) -> ProbeCost:
    """Measure for about 30 ms.

    Assumed figures are returned where measuring is impossible or could kill this process.
    """
    if MACHINE != "x86_64" or not returns_are_safe(os.getpid()):
        return ASSUMED
    try:
        return _measure(programs, table)
    except (OSError, Unavailable):
        return ASSUMED


def _measure(programs: CallPrograms, table: SlotTable) -> ProbeCost:
    descriptor = os.memfd_create("ingero-calibration")
    slot = table.take(os.getpid(), Recording())
    if slot is None:
        os.close(descriptor)
        return ASSUMED
    try:
        os.ftruncate(descriptor, _CODE_BYTES)
        for at, code in _CODE.items():
            os.pwrite(descriptor, code, at)
        # not writable: the kernel accepts probes only in code
        memory = mmap.mmap(
            descriptor, _CODE_BYTES, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC
        )
        base = int(np.frombuffer(memory, np.uint8).ctypes.data)
        loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)(base + _LOOP_AT)
        path = f"/proc/self/fd/{descriptor}"
        costs: list[float] = []
        for at, calls in ((_PUSH_AT, _CALLS), (_SUB_AT, _STEPPED_CALLS)):
            probe = Probe(at, cookie_of(slot, _QUIET_FUNCTION))
            plain = _time_per_call(loop, base + at, calls)
            for mode, returns in ((MODE_FULL, [probe]), (MODE_ENTRY, [])):
                table.rows[slot]["mode"] = mode
                link = programs.attach(path, [probe], returns, os.getpid())
                try:
                    costs.append(max(_time_per_call(loop, base + at, calls) - plain, 1.0))
                finally:
                    link.close()
        return ProbeCost(costs[0], costs[1], costs[2], costs[3], measured=True)
    finally:
        table.give_back([slot])
        os.close(descriptor)


def _time_per_call(loop: Callable[[int, int], object], function: int, calls: int) -> float:
    """Return CPU nanoseconds per call, the fastest of several rounds.

    Other processes can only make a round slower.
    """
    fastest = float("inf")
    for _ in range(_ROUNDS):
        before = time.thread_time_ns()
        loop(function, calls)
        fastest = min(fastest, (time.thread_time_ns() - before) / calls)
    return fastest
