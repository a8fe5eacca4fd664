"""F129: offsets come from the running kernel; a missing field disables one feature."""

import struct
from pathlib import Path

import pytest
from tests.support.compiler import compile_c

from ingero.agent.ebpf.kernel import resolve_features
from ingero.agent.ebpf.loader.btf import Btf, kernel_btf
from ingero.agent.ebpf.loader.elf import ElfFile
from ingero.agent.ebpf.policy import HOST_LAYERS

# a kernel of its own: old sched_switch, no comm in the task, oom by number, no TCP at all
OTHER_KERNEL = """
struct css_set { long pad; };
struct task_struct { long flags; struct { int pad; union { long a; struct { int before;
  unsigned int __state; }; }; };
  int pid, tgid; %s struct css_set *cgroups; };
typedef void (*btf_trace_sched_switch)(void *, _Bool, struct task_struct *, struct task_struct *);
typedef void (*btf_trace_sched_wakeup)(void *, struct task_struct *);
typedef void (*btf_trace_mark_victim)(void *, int);
typedef void (*btf_trace_mm_page_alloc)(void *, void *, unsigned int, unsigned int, int);
struct keep { struct task_struct task; struct css_set set; btf_trace_sched_switch a;
  btf_trace_sched_wakeup b;
  btf_trace_mark_victim c; btf_trace_mm_page_alloc d; };
struct keep keep;
"""


def other_kernel(folder: Path, comm: str) -> Btf:
    source = folder / "kernel.c"
    source.write_text(OTHER_KERNEL % comm)
    compile_c(source, folder / "kernel.o", "-target", "bpfel-freestanding", "-g", "-c")
    elf = ElfFile(str(folder / "kernel.o"))
    section = elf.section(".BTF")
    assert section is not None
    try:
        return Btf(elf.content(section))
    finally:
        elf.close()


def test_missing_field_switches_one_feature_off_with_a_reason(tmp_path: Path) -> None:
    constants, missing = resolve_features(other_kernel(tmp_path, ""), HOST_LAYERS)
    assert set(missing) == {"scheduler", "processes", "block", "tcp"}
    assert "no field task_struct.comm: no off-CPU time" in missing["scheduler"]
    assert (
        "no tracepoint sched_process_fork: forked children are found by scanning only"
        in missing["processes"]
    )
    assert "off_cgroups" in constants and "off_kn_id" not in constants


def test_older_signatures_are_recognised(tmp_path: Path) -> None:
    constants, missing = resolve_features(other_kernel(tmp_path, "char comm[16];"), HOST_LAYERS)
    assert "scheduler" not in missing and "oom" not in missing
    assert constants["off_pid"] == struct.pack("<I", 24)
    assert constants["off_state"] == struct.pack("<I", 20), "inside anonymous members"
    assert "switch_has_state" not in constants and "victim_is_task" not in constants


def test_kernel_without_btf_keeps_function_calls_only() -> None:
    constants, missing = resolve_features(None, HOST_LAYERS)
    assert set(missing) == HOST_LAYERS and all("no BTF" in reason for reason in missing.values())
    assert set(constants) == {"page_bytes"}


def test_running_kernel_has_everything() -> None:
    btf = kernel_btf()
    if btf is None:
        pytest.skip("this kernel has no BTF")
    constants, missing = resolve_features(btf, HOST_LAYERS)
    assert missing == {}
    assert constants["off_tgid"] == struct.pack(
        "<I", struct.unpack("<I", constants["off_pid"])[0] + 4
    )
