"""Links from programs to what they probe: uprobes (session, multi, perf) and raw tracepoints.

What the kernel supports is found by trying, not by its version: vendors backport features.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ingero.agent.ebpf.loader.program import load_empty_probe
from ingero.agent.ebpf.loader.syscalls import (
    LINK_CREATE,
    RAW_TRACEPOINT_OPEN,
    BpfRefused,
    bpf,
    perf_event_open,
    pinned,
)
from ingero.errors import Unavailable

ATTACH_PERF, ATTACH_UPROBE_MULTI, ATTACH_UPROBE_SESSION = 41, 48, 57
_UPROBE_TYPE: Final = "/sys/bus/event_source/devices/uprobe/type"
_PERF_SIZE: Final = 128
_ANY_CPU: Final = -1
_CLOSERS: Final = 8  # links closed in parallel share one wait


class ProbeStyle(StrEnum):
    """How user functions are probed, best first."""

    SESSION = "session"  # one link; saves a trap where the return is not needed
    MULTI = "multi"  # a link for entries and a link for returns
    PERF = "perf"  # two perf events per function: slow to detach, needs CAP_SYS_ADMIN


@dataclass(frozen=True, slots=True)
class Probe:
    """One function to attach to: its file offset and the cookie passed to the program."""

    offset: int
    cookie: int


@dataclass(slots=True)
class Link:
    """Descriptors that keep probes in place; closing them removes the probes."""

    descriptors: list[int]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class LinkCloser:
    """Closes links outside the poll loop.

    Before a probe is removed the kernel waits for every CPU, tens of milliseconds per link, and the
    workers of a data loader end by the dozen.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_CLOSERS, "link-closer")
        self._closing: list[tuple[list[Future[None]], list[int]]] = []

    def close_later(self, links: Sequence[Link], slots: list[int]) -> None:
        """Close the links in the background; their slots are free once all of them are closed."""
        self._closing.append(([self._pool.submit(link.close) for link in links], slots))

    def freed(self) -> list[int]:
        """Return the slots that no link uses any more, each once."""
        done = [all(future.done() for future in futures) for futures, _ in self._closing]
        found = [
            slot
            for (_, slots), is_done in zip(self._closing, done, strict=True)
            if is_done
            for slot in slots
        ]
        self._closing = [
            one for one, is_done in zip(self._closing, done, strict=True) if not is_done
        ]
        return found

    def close(self) -> None:
        """Wait until every link is closed."""
        self._pool.shutdown()


def attach_multi(
    program: int,
    path: str,
    probes: Sequence[Probe],
    pid: int,
    style: ProbeStyle,
    *,
    on_return: bool,
) -> Link:
    """Attach all probes of one file with one link, for the threads of one process only."""
    held_path = pinned(path.encode() + b"\0")
    offsets = pinned(struct.pack(f"<{len(probes)}Q", *(probe.offset for probe in probes)))
    cookies = pinned(struct.pack(f"<{len(probes)}Q", *(probe.cookie for probe in probes)))
    attach_type = ATTACH_UPROBE_SESSION if style is ProbeStyle.SESSION else ATTACH_UPROBE_MULTI
    addresses = (
        ctypes.addressof(held_path),
        ctypes.addressof(offsets),
        0,
        ctypes.addressof(cookies),
    )
    flags = 1 if on_return and style is ProbeStyle.MULTI else 0
    attributes = struct.pack(
        "<4I4Q3I", program, 0, attach_type, 0, *addresses, len(probes), flags, pid
    ) + bytes(4)
    return Link([bpf(LINK_CREATE, attributes, f"attach to {path}")[0]])


def attach_perf(
    program: int, path: str, probes: Sequence[Probe], pid: int, *, on_return: bool
) -> Link:
    """Attach with one perf event per function, for older kernels."""
    try:
        with open(_UPROBE_TYPE) as file:  # noqa: PTH123 - pathlib is slow to import
            kind = int(file.read())
    except OSError as err:
        raise Unavailable(f"this kernel has no uprobes: {err}") from None
    held_path = pinned(path.encode() + b"\0")
    link = Link([])
    try:
        for probe in probes:
            attributes = struct.pack(
                "<IIQQQQQIIQQ", kind, _PERF_SIZE, 1 if on_return else 0, 1, 0, 0, 0, 1, 0,
                ctypes.addressof(held_path), probe.offset,
            ).ljust(_PERF_SIZE, b"\0")  # fmt: skip
            event = perf_event_open(attributes, pid, _ANY_CPU)
            link.descriptors.append(event)
            joined = struct.pack("<4IQ", program, event, ATTACH_PERF, 0, probe.cookie)
            link.descriptors.insert(0, bpf(LINK_CREATE, joined, f"attach to {path}")[0])
    except BaseException:
        link.close()
        raise
    return link


def attach_tracepoint(program: int, name: str) -> Link:
    held = pinned(name.encode() + b"\0")
    attributes = struct.pack("<QII", ctypes.addressof(held), program, 0) + bytes(8)
    return Link([bpf(RAW_TRACEPOINT_OPEN, attributes, f"attach to tracepoint {name}")[0]])


def detect_style() -> tuple[ProbeStyle, dict[ProbeStyle, str]]:
    """Return the best style this kernel supports, and why better ones were refused."""
    refusals: dict[ProbeStyle, str] = {}
    for style, attach_type in (
        (ProbeStyle.SESSION, ATTACH_UPROBE_SESSION),
        (ProbeStyle.MULTI, ATTACH_UPROBE_MULTI),
    ):
        refused = _refusal(style, attach_type)
        if refused is None:
            return style, refusals
        refusals[style] = refused
    return ProbeStyle.PERF, refusals


def _refusal(style: ProbeStyle, attach_type: int) -> str | None:
    """Return why the kernel refuses a style, or None.

    The test attaches a probe to a folder: a kernel that supports the style rejects the folder
    (EBADF), an older one rejects the style.
    """
    try:
        program = load_empty_probe(attach_type)
    except BpfRefused as refused:
        return str(refused)
    try:
        attach_multi(program, "/", [Probe(1, 0)], os.getpid(), style, on_return=False).close()
    except BpfRefused as refused:
        return None if refused.number == errno.EBADF else str(refused)
    finally:
        os.close(program)
    return None
