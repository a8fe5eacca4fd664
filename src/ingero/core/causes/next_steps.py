"""The next step for each kind of cause."""

from typing import Final

from ingero.contract.causes import CauseKind

NEXT_STEPS: Final = {
    CauseKind.GPU_CLOCK: "read `nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE` on the node; "
    "check its power supply, cooling and power cap",
    CauseKind.GPU_MEMORY: "drain the node at the next checkpoint and run the vendor's memory "
    "diagnostics on this GPU",
    CauseKind.GPU_ERROR: "drain the node at the next checkpoint; read the driver's messages "
    "(`dmesg`) about this GPU",
    CauseKind.PCIE: "reseat or drain: this GPU's PCIe link was trained slower than its peers'",
    CauseKind.CPU: "give the rank CPUs of its own (affinity, cpuset), or move the process that "
    "takes them",
    CauseKind.QUOTA: "raise the CPU limit of this container or cgroup",
    CauseKind.MEMORY: "give the container more memory, or reduce page cache and pinned memory",
    CauseKind.DISK: "look at the storage of this node; stage the data elsewhere",
    CauseKind.NETWORK: "read NIC and switch counters of this node; check cable and transceiver",
    CauseKind.GC: "call gc.freeze() after the start and gc.collect() at the same step on all ranks",
    CauseKind.LOCK: "shorten what is done under this lock, or move it out of the training thread",
    CauseKind.INTERPRETER_LOCK: "move this thread's Python work into another process",
    CauseKind.READER: "look at what this reader reads: storage, network mount, too few workers",
    CauseKind.WAIT: "look at what this line waits for",
    CauseKind.PYTHON: "look at why this rank spends more time in this function than its peers",
}
