"""Recommendations for each cause, with commands that a person can paste."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Host:
    """The facts that recommendations name: number of cores and names of processes."""

    cpus: int = 0
    names: Mapping[int, str] = field(default_factory=dict)

    def describe(self, pid: int) -> str:
        """Return `rsync (pid 812)`, or `pid 812` if the name is unknown."""
        name = self.names.get(pid)
        return f"{name} (pid {pid})" if name else f"pid {pid}"


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
    return f"Give the process cores of its own: taskset -acp {cores} {pid or 'PID'}"


def lower_priority(preemptors: Sequence[int], host: Host) -> str:
    """Recommend a lower priority for the processes that took the CPU."""
    if not preemptors:
        return "Lower the priority of background jobs: renice -n 19 -p PID"
    who = ", ".join(host.describe(pid) for pid in preemptors)
    return (
        f"Lower the priority of {who}: renice -n 19 -p {' '.join(str(pid) for pid in preemptors)}"
    )


def lower_disk_priority(pid: int, host: Host) -> str:
    """Recommend a lower disk priority for another process."""
    return f"Let the disk traffic of {host.describe(pid)} wait: ionice -c 3 -p {pid}"


def limit_neighbour(host: Host, preemptors: Sequence[int]) -> str:
    """Recommend a CPU limit for the container that takes the job's CPU."""
    who = f" ({', '.join(host.describe(pid) for pid in preemptors)})" if preemptors else ""
    return (
        f"Find the container that uses the CPU{who} and cap it: "
        "echo '100000 100000' > /sys/fs/cgroup/GROUP/cpu.max"
    )
