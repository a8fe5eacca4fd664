"""Kernel features: tracepoints and the structure fields they need, resolved from BTF."""

import mmap
import struct
from dataclasses import dataclass
from typing import Final

from ingero.agent.ebpf.loader.btf import PTR, STRUCT, Btf

_TASK: Final = (("off_pid", "task_struct", "pid"), ("off_tgid", "task_struct", "tgid"))
_OPTIONAL: Final = (  # without these, records only lack their cgroup
    ("off_cgroups", "task_struct", "cgroups"),
    ("off_dfl_cgrp", "css_set", "dfl_cgrp"),
    ("off_kn", "cgroup", "kn"),
    ("off_kn_id", "kernfs_node", "id"),
    ("off_sk_cgroup", "sock", "sk_cgrp_data.cgroup"),
)


@dataclass(frozen=True, slots=True)
class Feature:
    """One kernel feature: its tracepoints with their minimum number of arguments, and fields."""

    name: str
    costs_without: str
    tracepoints: tuple[tuple[str, int], ...]
    fields: tuple[tuple[str, str, str], ...]


FEATURES: Final = (
    Feature(
        "scheduler",
        "no off-CPU time: CPU contention cannot be distinguished from other causes",
        (("sched_switch", 3), ("sched_wakeup", 1)),
        (*_TASK, ("off_comm", "task_struct", "comm")),
    ),
    Feature(
        "processes",
        "forked children are found by scanning only",
        (("sched_process_fork", 2), ("sched_process_exec", 1), ("sched_process_exit", 1)),
        _TASK,
    ),
    Feature("pages", "no memory allocation rates", (("mm_page_alloc", 2),), ()),
    Feature("oom", "out-of-memory kills are not seen", (("mark_victim", 1),), _TASK),
    Feature(
        "block",
        "no block I/O: a slow disk cannot be distinguished from other causes",
        (("block_rq_insert", 1), ("block_rq_issue", 1), ("block_rq_complete", 3)),
        (
            ("off_rq_len", "request", "__data_len"),
            ("off_rq_sector", "request", "__sector"),
            ("off_rq_flags", "request", "cmd_flags"),
        ),
    ),
    Feature(
        "tcp",
        "no TCP retransmissions",
        (("tcp_retransmit_skb", 2),),
        (
            ("off_daddr", "sock_common", "skc_daddr"),
            ("off_saddr", "sock_common", "skc_rcv_saddr"),
            ("off_dport", "sock_common", "skc_dport"),
            ("off_num", "sock_common", "skc_num"),
            ("off_family", "sock_common", "skc_family"),
            ("off_skstate", "sock_common", "skc_state"),
        ),
    ),
)


def resolve_features(
    btf: Btf | None, wanted: frozenset[str]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the constants of the probes, and the reason for each feature that is missing."""
    constants: dict[str, bytes] = {"page_bytes": struct.pack("<I", mmap.PAGESIZE)}
    missing: dict[str, str] = {}
    for feature in FEATURES:
        if feature.name not in wanted:
            continue
        reason = (
            "the kernel has no BTF at /sys/kernel/btf/vmlinux"
            if btf is None
            else _missing(btf, feature, constants)
        )
        if reason:
            missing[feature.name] = f"{reason}: {feature.costs_without}"
    if btf is not None:
        _signatures(btf, constants)
        for constant, owner, field in _OPTIONAL:
            offset = _offset(btf, owner, field)
            if offset is not None:
                constants[constant] = struct.pack("<I", offset)
        if "scheduler" in wanted and "off_kn_id" in constants:
            constants["watch_neighbours"] = struct.pack("<I", 1)
        if "scheduler" not in missing and not constants.get("switch_has_state"):
            _older_state(btf, constants, missing)
    return constants, missing


def _missing(btf: Btf, feature: Feature, constants: dict[str, bytes]) -> str | None:
    """Resolve the fields of a feature into `constants`.

    Return the reason when a field or tracepoint is missing.
    """
    for tracepoint, least in feature.tracepoints:
        parameters = btf.parameters(tracepoint)
        if parameters is None:
            return f"the kernel has no tracepoint {tracepoint}"
        if len(parameters) < least:
            return f"tracepoint {tracepoint} has {len(parameters)} arguments, not {least}"
    for constant, owner, field in feature.fields:
        offset = _offset(btf, owner, field)
        if offset is None:
            return f"the kernel has no field {owner}.{field}"
        constants[constant] = struct.pack("<I", offset)
    return None


def _offset(btf: Btf, owner: str, field: str) -> int | None:
    number = btf.find([owner], STRUCT).get(owner)
    return None if number is None else btf.offset_of(number, field)


def _signatures(btf: Btf, constants: dict[str, bytes]) -> None:
    """Set the constants for tracepoints whose arguments differ between kernel versions."""
    switch, victim, issue = (
        btf.parameters(name) for name in ("sched_switch", "mark_victim", "block_rq_issue")
    )
    if switch and len(switch) > 3:
        constants["switch_has_state"] = struct.pack("<I", 1)
    if victim and btf.kind_of(victim[0]) == PTR:
        constants["victim_is_task"] = struct.pack("<I", 1)
    if issue and len(issue) > 1:
        constants["issue_has_queue"] = struct.pack("<I", 1)


def _older_state(btf: Btf, constants: dict[str, bytes], missing: dict[str, str]) -> None:
    """Find the task state: before 5.18 the tracepoint does not carry it."""
    offset = _offset(btf, "task_struct", "__state")
    offset = _offset(btf, "task_struct", "state") if offset is None else offset
    if offset is None:
        missing["scheduler"] = (
            "the kernel has no field task_struct.__state: "
            "preemption cannot be distinguished from sleep"
        )
    else:
        constants["off_state"] = struct.pack("<I", offset)
