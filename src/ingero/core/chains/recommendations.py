"""Recommendations for each cause, with commands that a person can paste.

A command that changes something says what it changes and how to undo it.
"""

from collections.abc import Sequence

from ingero.core.chains.neighbours import Host

BUSY_CPU = (
    "Find who uses the CPU and move it away from the job: "
    "ps -eo pid,pcpu,psr,comm --sort=-pcpu | head"
)
MEMORY = "Find what uses the memory and stop it or add RAM: ps -eo pid,rss,comm --sort=-rss | head"
SWAP = (
    "Get the job out of swap (more RAM, fewer loader workers), and see who is in it: "
    "smem -s swap -r | head"
)
PAGES = (
    "Find who allocates host memory during GPU work: "
    "perf record -e kmem:mm_page_alloc -a -g sleep 10"
)
SLOW_DISK = (
    "The slowest request looks like a spinning or network disk; move the data to local NVMe: "
    "lsblk -d -o NAME,ROTA"
)
WRITES = "Writes dominate: write checkpoints asynchronously or to a separate volume"
READS = (
    "Reads dominate: stage the data set in RAM (/dev/shm) or on NVMe, "
    "and give the loader more workers"
)
MIXED_IO = (
    "Reads and writes mix: look at checkpoints, model loading and the data loader: iostat -x 1"
)
RETRANSMITS = (
    "Check the link: ethtool -S IFACE | grep -iE 'err|drop' and the MTU of every hop: ip link"
)
SOCKETS = "The GPU may be waiting for the network; find the callers: ss -tinp"
OUT_OF_MEMORY = (
    "Cut the host memory of the job (loader workers, pinned buffers) or add RAM: "
    "dmesg -T | grep -i 'out of memory'"
)
CONGESTION = (
    "Look for congestion and bad links (nstat -az TcpRetransSegs; ethtool -S IFACE), "
    "and keep NCCL on the fast interface: NCCL_SOCKET_IFNAME=IFACE"
)
POD_RESTART = (
    "kubectl describe pod POD; kubectl logs --previous POD; "
    "kubectl get events --field-selector reason=OOMKilling"
)
POD_EVICTION = (
    "kubectl describe node NODE | grep -A8 Conditions; "
    "set requests, limits and a priority class for the job"
)
GRAPH_OOM = (
    "Capture with a smaller batch and let the allocator grow: "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; watch nvidia-smi during warm-up"
)
GRAPH_FREQUENCY = (
    "Capture the batch sizes you expect in advance, and log which sizes are captured again"
)
GRAPH_UNUSED = (
    "Check that the path which launches the graph runs; destroy executables that are not used"
)
GRAPH_WARM_UP = (
    "Run at least three warm-up iterations before the capture, create the BLAS handle first, "
    "or use torch.cuda.make_graphed_callables"
)


def pin(pid: int, host: Host) -> str:
    """Recommend cores of its own for the job."""
    cores = {0: "CORES", 1: "0", 2: "1"}.get(host.cpus, f"1-{host.cpus - 1}")
    all_cores = f"0-{host.cpus - 1}" if host.cpus else "ALL"
    who = pid or "PID"
    return (
        f"Give the process cores of its own: taskset -acp {cores} {who} "
        f"(moves its threads at once; undo: taskset -acp {all_cores} {who})"
    )


def lower_priority(preemptors: Sequence[int], host: Host, job: int = 0) -> str:
    """Recommend a lower priority for the processes that took the CPU."""
    if not preemptors:
        return (
            "Lower the priority of background jobs: renice -n 19 -p PID "
            "(they get the CPU last; undo: renice -n 0 -p PID)"
        )
    may_change = [pid for pid in preemptors if host.may_change(pid)]
    if not may_change:
        who = ", ".join(host.describe(pid) for pid in preemptors)
        return f"Leave {who} as it is: it belongs to the system, and the job needs other cores"
    return "; ".join(
        _less_cpu(group, pids, host, job) for group, pids in host.groups_of(may_change, job)
    )


def _less_cpu(group: str, pids: Sequence[int], host: Host, job: int) -> str:
    who = ", ".join(host.describe_for(pid, job) for pid in pids)
    unit = host.neighbour(pids[0]).unit
    if group and unit:
        change = f"systemctl set-property --runtime {unit} CPUWeight="
        return (
            f"Give {unit} ({who}) less of the CPU: {change}10 "
            f"(until the next start of the machine; undo: {change}100)"
        )
    if group:
        file = f"/sys/fs/cgroup{group}/cpu.weight"
        return (
            f"Give the container of {who} less of the CPU: echo 10 > {file} "
            f"(until it restarts; undo: echo 100 > {file})"
        )
    numbers = " ".join(str(pid) for pid in pids)
    return (
        f"Lower the priority of {who}: renice -n 19 -p {numbers} "
        f"(it gets the CPU last; undo: renice -n 0 -p {numbers})"
    )


def lower_disk_priority(pid: int, host: Host, job: int) -> str:
    """Recommend a lower disk priority for another process."""
    if not host.may_change(pid):
        return (
            f"The traffic of {host.describe(pid)} is written for others; find out for whom: "
            "iotop -oPa"
        )
    return (
        f"Let the disk traffic of {host.describe_for(pid, job)} wait: ionice -c 3 -p {pid} "
        f"(it gets the disk when nobody else needs it; undo: ionice -c 2 -n 4 -p {pid})"
    )


def limit_neighbour(host: Host, preemptors: Sequence[int]) -> str:
    """Recommend a CPU limit for the container that takes the job's CPU."""
    may_change = [pid for pid in preemptors if host.may_change(pid)]
    who = f" ({', '.join(host.describe(pid) for pid in may_change)})" if may_change else ""
    groups = [group for group, _ in host.groups_of(may_change, 0) if group]
    file = f"/sys/fs/cgroup{groups[0] if groups else '/GROUP'}/cpu.max"
    return (
        f"Find the container that uses the CPU{who} and limit it to one core: "
        f"echo '100000 100000' > {file} (until it restarts; undo: echo max > {file})"
    )
