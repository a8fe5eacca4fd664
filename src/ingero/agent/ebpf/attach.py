"""Probes of one process: slots are taken first, then links; every mode change happens here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ingero.agent.ebpf.functions import FUNCTIONS, LAUNCHES, Function, Rate
from ingero.agent.ebpf.layout import MODE_ENTRY, MODE_FULL, cookie_of
from ingero.agent.ebpf.loader.elf import ElfFile, Site
from ingero.agent.ebpf.loader.links import Link, Probe, ProbeStyle, attach_multi, attach_perf
from ingero.agent.ebpf.loader.syscalls import MACHINE
from ingero.agent.ebpf.slots import Recording, SlotTable
from ingero.agent.processes.discover import Library, MappedLibrary
from ingero.agent.processes.maps import identify, openable
from ingero.errors import ForeignFile, Unavailable
from ingero.files import FileId

_CACHED_FILES: Final = 256
Sites = Mapping[int, tuple[Site, ...]]  # by function number


class ProbeMode(Enum):
    """How a function is probed at this moment."""

    FULL = "full"
    ENTRY = "entry"
    DETACHED = "detached"


class SiteCache:
    """File offsets of the probed functions in each library file.

    An entry is used only for the very same file: an offset from another file would be in the middle
    of an instruction and kill the process.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[FileId, Library], Sites] = {}

    def sites(self, pid: int, library: MappedLibrary) -> Sites:
        """Return the probe sites of a mapped library.

        Raises Unavailable when the mapped file can no longer be opened, and OSError when it
        disappears while it is read.
        """
        path = openable(pid, library)
        if path is None:
            raise Unavailable(
                f"{library.path} of process {pid} was deleted or replaced, and its "
                "mapped file cannot be opened"
            )
        key = identify(path), library.library
        if key not in self._known:
            if len(self._known) >= _CACHED_FILES:
                self._known.clear()
            self._known[key] = find_sites(path, library.library, file=key[0])
        return self._known[key]


def find_sites(
    path: str, library: Library, machine: str = MACHINE, file: FileId | None = None
) -> Sites:
    """Find the probe sites of all functions of one library, each address once."""
    elf = ElfFile(path, file)
    try:
        if elf.machine != machine:
            raise ForeignFile(f"{path} is for {elf.machine}, this machine is {machine}")
        own = {
            number: function
            for number, function in enumerate(FUNCTIONS)
            if function.library is library
        }
        symbols = elf.functions(name for function in own.values() for name in function.symbols)
        lacking = {
            function.name for function in own.values() if not symbols.keys() & {*function.symbols}
        }
        versioned = elf.versioned(lacking) if lacking else {}
        symbols.update(elf.functions(versioned.values()) if versioned else {})
        sites: dict[int, tuple[Site, ...]] = {}
        taken: set[int] = set()
        for number, function in own.items():
            names = [name for name in function.symbols if name in symbols]
            if not names and versioned.get(function.name) in symbols:
                names = [versioned[function.name]]
            fresh = [
                site
                for site in (elf.site(symbols[name]) for name in names)
                if site.offset not in taken
            ]
            unique = tuple({site.offset: site for site in fresh}.values())
            taken |= {site.offset for site in unique}
            if unique:
                sites[number] = unique
        return sites
    finally:
        elf.close()


@dataclass(frozen=True, slots=True)
class CallPrograms:
    """The BPF programs for function calls, in the style this kernel supports."""

    style: ProbeStyle
    session: int | None
    entry: int | None
    on_return: int | None

    def attach(self, path: str, probes: list[Probe], returns: list[Probe], pid: int) -> Link:
        """Probe the entries of `probes` and the returns of `returns`, which are a part of them."""
        if self.style is ProbeStyle.SESSION and self.session is not None:
            return attach_multi(self.session, path, probes, pid, self.style, on_return=False)
        if self.entry is None or self.on_return is None:
            raise Unavailable("no program for function calls could be loaded")
        link = Link([])
        try:
            for program, wanted, on_return in (
                (self.on_return, returns, True),
                (self.entry, probes, False),
            ):
                if wanted and self.style is ProbeStyle.PERF:
                    link.descriptors += attach_perf(
                        program, path, wanted, pid, on_return=on_return
                    ).descriptors
                elif wanted:
                    made = attach_multi(program, path, wanted, pid, self.style, on_return=on_return)
                    link.descriptors += made.descriptors
        except BaseException:
            link.close()  # half a pair would cost traps until the agent ends
            raise
        return link


@dataclass(slots=True)
class _ProbeGroup:
    """Probes of one file that attach and detach together: one hot function, or all others."""

    path: str
    probes: list[tuple[int, Probe]]
    detached: set[int] = field(default_factory=set)
    entry_only: set[int] = field(default_factory=set)
    link: Link | None = None

    def attach(self, programs: CallPrograms, pid: int) -> None:
        """Attach what is wanted; the old link is closed first, so that no call counts twice."""
        if self.link is not None:
            self.link.close()
            self.link = None
        wanted = [(number, probe) for number, probe in self.probes if number not in self.detached]
        returns = [probe for number, probe in wanted if number not in self.entry_only]
        if wanted:
            self.link = programs.attach(self.path, [probe for _, probe in wanted], returns, pid)


@dataclass(slots=True)
class ProcessProbes:
    """The probes of one process; `started` distinguishes it from a later one with the same pid."""

    pid: int
    started: int
    entry_only: bool = False
    # functions now probed in another layer; their counts stay
    retired: set[int] = field(default_factory=set)
    slots: dict[int, int] = field(default_factory=dict)
    unwatched: set[int] = field(default_factory=set)  # functions for which no slot was free
    files: dict[tuple[str, int], str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    # first bytes of each function: they decide what a probe costs
    first_bytes: dict[int, bytes] = field(default_factory=dict)
    # all its libraries are attached: its mappings are read again only then
    rescan_at_s: float = 0.0
    first_host_slot: int = 0
    host_slots: int = 0
    _groups: list[_ProbeGroup] = field(default_factory=list)

    def add(
        self,
        library: MappedLibrary,
        sites: Sites,
        table: SlotTable,
        programs: CallPrograms,
        recordings: Mapping[int, Recording],
    ) -> None:
        """Attach to one more library file. Slots exist before links."""
        self.files[library.key] = library.path
        path = openable(self.pid, library)
        if path is None:
            raise Unavailable(f"{library.path} of process {self.pid} is no longer there")
        groups = [_ProbeGroup(path, [])]
        for number, own_sites in sites.items():
            if number not in recordings:
                continue
            slot = self.slots.get(number) or table.take(self.pid, recordings[number])
            if slot is None:
                self.unwatched.add(number)
                self.failures["slots"] = (
                    f"no slot is free for {len(self.unwatched)} functions: they are not traced"
                )
                continue
            self.slots[number] = slot
            # set before the first call: a return probe, even for a moment, may kill the process
            if self.entry_only:
                table.rows[slot]["mode"] = MODE_ENTRY
            self.first_bytes[number] = own_sites[0].first_bytes
            probes = [(number, Probe(site.offset, cookie_of(slot, number))) for site in own_sites]
            if FUNCTIONS[number].rate is Rate.HOT:
                groups.append(_ProbeGroup(path, probes))
            else:
                groups[0].probes += probes
        for group in groups:
            if self.entry_only:
                group.entry_only = {number for number, _ in group.probes}
            group.attach(programs, self.pid)
            self._groups.append(group)

    def set_mode(
        self, number: int, mode: ProbeMode, table: SlotTable, programs: CallPrograms
    ) -> None:
        """Change the probe mode of one function at once."""
        if mode is not ProbeMode.DETACHED:  # until the link is closed, calls are counted as before
            table.rows[self.slots[number]]["mode"] = (
                MODE_ENTRY if mode is ProbeMode.ENTRY else MODE_FULL
            )
        for group in self._groups:
            if all(number != own for own, _ in group.probes):
                continue
            detached = group.detached - {number} | (
                {number} if mode is ProbeMode.DETACHED else set()
            )
            entry_only = group.entry_only - {number} | (
                {number} if mode is ProbeMode.ENTRY else set()
            )
            relink = detached != group.detached or (
                entry_only != group.entry_only and programs.style is not ProbeStyle.SESSION
            )
            group.detached, group.entry_only = detached, entry_only
            if relink:
                group.attach(programs, self.pid)

    def watched(self) -> dict[int, bool]:
        """Return by function number whether its probe is attached now."""
        return {
            number: number not in group.detached
            for group in self._groups
            for number, _ in group.probes
        }

    def detach(self, table: SlotTable) -> tuple[list[Link], list[int]]:
        """Stop counting; return the links to close and the slots that these links still use."""
        host = range(self.first_host_slot, self.first_host_slot + self.host_slots)
        slots = [*self.slots.values(), *host]
        table.silence(slots)
        return [group.link for group in self._groups if group.link is not None], slots


def choose_functions(
    known: set[int], layers: frozenset[str], *, both_launch_layers: bool
) -> set[int]:
    """Choose the functions to probe in one process.

    The driver sees every launch, so launches of the runtime are left out where it is probed.
    """
    wanted = {number for number in known if _layer(FUNCTIONS[number]) in layers}
    if both_launch_layers or all(FUNCTIONS[number].name != "cuLaunchKernel" for number in wanted):
        return wanted
    return {number for number in wanted if FUNCTIONS[number].name not in LAUNCHES}


def _layer(function: Function) -> str:
    if function.library is Library.CUDART:
        return "graphs" if function.source.name == "GRAPH" else "runtime"
    return {Library.CUDA: "driver", Library.NCCL: "nccl"}[function.library]
