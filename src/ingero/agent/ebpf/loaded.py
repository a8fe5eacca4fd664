"""Loaded probes: object, programs, rings, slots and tracepoints, and the state of each layer."""

import contextlib
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ingero.agent.ebpf.attach import CallPrograms
from ingero.agent.ebpf.functions import encode_functions
from ingero.agent.ebpf.kernel import FEATURES, Feature, resolve_features
from ingero.agent.ebpf.layout import EVENT, NCCL_EVENT
from ingero.agent.ebpf.loader.btf import kernel_btf
from ingero.agent.ebpf.loader.links import (
    ATTACH_UPROBE_MULTI,
    ATTACH_UPROBE_SESSION,
    Link,
    ProbeStyle,
    attach_tracepoint,
    detect_style,
)
from ingero.agent.ebpf.loader.program import KPROBE, RAW_TRACEPOINT, ProbeObject
from ingero.agent.ebpf.loader.ring import Ring
from ingero.agent.ebpf.loader.syscalls import MACHINE
from ingero.agent.ebpf.policy import CALL_LAYERS, TracePolicy
from ingero.agent.ebpf.slots import SlotTable
from ingero.errors import Unavailable

_DESCRIPTORS: Final = 1 << 18
_OBJECTS: Final = Path(__file__).parent / "probes"


def allow_descriptors() -> None:
    """Raise the limit on open files as far as allowed.

    Every traced process needs several descriptors, on older kernels two per function, and a shell
    allows 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True)
class Capability:
    """One layer: on, or off with the reason."""

    name: str
    on: bool
    detail: str


class LoadedProbes:
    """Everything in the kernel except the links of single processes; `close` removes it."""

    def __init__(self, policy: TracePolicy, path: Path | None = None) -> None:
        path = path or _OBJECTS / f"trace.{MACHINE}.o"
        if not path.exists():
            raise Unavailable(f"no probes for {MACHINE}: {path} is missing")
        allow_descriptors()
        self.capabilities: dict[str, Capability] = {}
        self._layers = policy.layers
        constants, missing = resolve_features(kernel_btf(), policy.layers)
        constants["functions"] = encode_functions(MACHINE, stacks=policy.stacks)
        self._object = ProbeObject(str(path), constants, dict(policy.map_sizes))
        self._opened = contextlib.ExitStack()
        self._opened.callback(self._object.close)
        try:
            self._open(policy, missing)
        except BaseException:
            self.close()
            raise
        finally:
            kernel_btf.cache_clear()  # 30 MB that are not needed after loading

    def _open(self, policy: TracePolicy, missing: Mapping[str, str]) -> None:
        """Open everything after the maps; what was opened is closed again if a later part fails."""
        self.maps = self._object.maps
        self.table = SlotTable(self.maps["slots"])
        self._opened.callback(self.table.close)
        rings = [
            self._ring(name, NCCL_EVENT if name == "nccl_ring" else EVENT)
            for name in ("critical_ring", "host_ring", "calls_ring", "nccl_ring")
        ]
        self.rings, self.nccl_ring = rings[:3], rings[3]
        self.calls = self._load_calls()
        for feature in FEATURES:
            if feature.name in policy.layers:
                self._attach(feature, missing.get(feature.name))
        if not any(capability.on for capability in self.capabilities.values()):
            reasons = "; ".join(f"{one.name}: {one.detail}" for one in self.capabilities.values())
            raise Unavailable(f"nothing can be traced here ({reasons})")

    def _ring(self, name: str, record: np.dtype[np.void]) -> Ring:
        ring = Ring(self.maps[name], record)
        self._opened.callback(ring.close)
        return ring

    def _load_calls(self) -> CallPrograms:
        style, refusals = detect_style()
        if style is ProbeStyle.SESSION:
            try:
                program = self._object.load("call_session", KPROBE, ATTACH_UPROBE_SESSION)
            except Unavailable as refused:
                refusals[style], style = str(refused), ProbeStyle.MULTI
            else:
                self._note_calls(style, refusals)
                return CallPrograms(style, program, None, None)
        attach_type = ATTACH_UPROBE_MULTI if style is ProbeStyle.MULTI else 0
        try:
            entry = self._object.load("call_entry", KPROBE, attach_type)
            on_return = self._object.load("call_return", KPROBE, attach_type)
        except Unavailable as refused:
            for layer in sorted(self._layers & CALL_LAYERS):
                self.capabilities[layer] = Capability(layer, False, str(refused))
            return CallPrograms(style, None, None, None)
        self._note_calls(style, refusals)
        return CallPrograms(style, None, entry, on_return)

    def _note_calls(self, style: ProbeStyle, refusals: dict[ProbeStyle, str]) -> None:
        detail = f"uprobes, style {style}" + "".join(
            f"; {name} refused: {why}" for name, why in refusals.items()
        )
        for layer in sorted(self._layers & CALL_LAYERS):
            self.capabilities[layer] = Capability(layer, True, detail)

    def _attach(self, feature: Feature, missing: str | None) -> None:
        links: list[Link] = []
        try:
            for tracepoint, _ in feature.tracepoints if missing is None else ():
                program = self._object.load(f"on_{tracepoint}", RAW_TRACEPOINT)
                links.append(attach_tracepoint(program, tracepoint))
        except Unavailable as refused:
            for link in links:
                link.close()
            links, missing = [], f"{refused}: {feature.costs_without}"
        for link in links:
            self._opened.callback(link.close)
        self.capabilities[feature.name] = Capability(
            feature.name, missing is None, missing or "raw tracepoints"
        )

    def close(self) -> None:
        """Close links first and maps last."""
        self._opened.close()
