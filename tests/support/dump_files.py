"""Flight Recorder, Inspector and Kineto files, written from simulated records."""

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support.recorded_jobs import Job, record

from ingero.contract.collective import CollectiveRecord

TORCH_NAMES = {"AllReduce": "nccl:all_reduce", "Send": "nccl:send", "Recv": "nccl:recv"}


def _members(records: list[CollectiveRecord]) -> dict[int, dict[int, int]]:
    members: dict[int, dict[int, int]] = defaultdict(dict)
    for r in records:
        assert r.global_rank is not None
        members[r.comm][r.rank] = r.global_rank
    return members


def flight_dump(
    records: list[CollectiveRecord], rank: int, *, timed: bool = True
) -> dict[str, Any]:
    """The dump of one rank with all its operations completed."""
    members = _members(records)
    names = {comm: str(i + 1) for i, comm in enumerate(sorted(members))}
    own = sorted((r for r in records if r.global_rank == rank), key=lambda r: r.start_ns)
    mine = {r.comm for r in own}
    world = sorted({r.global_rank for r in records if r.global_rank is not None})
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(world)}}
    for comm in mine:
        ranks = [members[comm][i] for i in sorted(members[comm])]
        config[names[comm]] = {
            "name": names[comm],
            "desc": f"group{names[comm]}",
            "ranks": str(ranks),
        }
    entries = []
    for i, r in enumerate(own):
        name = TORCH_NAMES[r.op]
        if r.peer is not None:
            name += f" {r.rank}->{r.peer}" if r.op == "Send" else f" {r.rank}<-{r.peer}"
        entry = {
            "record_id": i,
            "pg_id": int(names[r.comm]),
            "process_group": (names[r.comm], f"group{names[r.comm]}"),
            "collective_seq_id": r.seq,
            "p2p_seq_id": 0,
            "op_id": i,
            "profiling_name": name,
            "time_created_ns": r.start_ns,
            "input_sizes": [[r.size_bytes // 2]],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [[r.size_bytes // 2]],
            "output_dtypes": ["BFloat16"],
            "state": "completed",
            "time_discovered_started_ns": r.end_ns + 30_000_000,
            "time_discovered_completed_ns": r.end_ns + 31_000_000,
            "retired": True,
            "timeout_ms": 600_000,
            "is_p2p": r.peer is not None,
        }
        if timed:
            entry["duration_ms"] = (r.gpu_duration_ns or 0) / 1e6
        entries.append(entry)
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def write_dumps(folder: Path, job: Job) -> list[Path]:
    """One pickled dump per rank."""
    records = record(job)
    paths = []
    for rank in range(job.world):
        path = folder / f"_dump_{rank}"
        path.write_bytes(pickle.dumps(flight_dump(records, rank)))
        paths.append(path)
    return paths


def inspector_lines(
    records: list[CollectiveRecord], rank: int, *, verbose: bool
) -> list[dict[str, Any]]:
    """Return what the Inspector of one process writes; the world communicator comes first."""
    lines = []
    for r in (r for r in records if r.global_rank == rank):
        duration_us = (r.gpu_duration_ns or 0) / 1000
        perf: dict[str, Any] = {
            "coll": r.op,
            "coll_sn": r.seq,
            "coll_msg_size_bytes": r.size_bytes,
            "coll_exec_time_us": duration_us,
            "coll_algobw_gbs": 1.0,
            "coll_busbw_gbs": 1.0,
        }
        if verbose:
            perf["coll_timing_source"] = "kernel_gpu"
            perf["event_trace_ts"] = {
                "coll_start_ts": r.start_ns // 1000,
                "coll_stop_ts": r.start_ns // 1000 + 5,
                "kernel_events": [
                    {
                        "channel_id": 0,
                        "kernel_start_ts": (r.end_ns - (r.gpu_duration_ns or 0)) // 1000,
                        "kernel_stop_ts": r.end_ns // 1000,
                    }
                ],
            }
        lines.append(
            {
                "header": {"id": f"0x{r.comm:x}", "rank": r.rank, "n_ranks": r.nranks, "nnodes": 1},
                "metadata": {
                    "inspector_output_format_version": "v4.0",
                    "dump_timestamp_us": r.end_ns // 1000 + 400,
                    "hostname": f"host{rank // 2}",
                    "pid": 1000 + rank,
                },
                "coll_perf": perf,
            }
        )
    return lines


def _nccl_kernel(
    record: CollectiveRecord, begin_us: float, correlation: int, group: list[int]
) -> dict[str, Any]:
    args = {
        "correlation": correlation,
        "stream": 20,
        "Collective name": "allreduce",
        "In msg nelems": record.size_bytes // 2,
        "Out msg nelems": record.size_bytes // 2,
        "Group size": record.nranks,
        "dtype": "BFloat16",
        "Process Group Name": f"{record.comm:x}",
        "Process Group Ranks": str(group),
    }
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)"
    length_us = (record.gpu_duration_ns or 0) / 1000
    return {
        "ph": "X", "cat": "kernel", "name": name, "ts": begin_us, "dur": length_us, "args": args,
    }  # fmt: skip


def kineto_trace(records: list[CollectiveRecord], rank: int, world: int) -> dict[str, Any]:
    """Return the profiler's trace of one rank: launches, NCCL kernels and other compute."""
    members = _members(records)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}
    ]
    base = min(r.start_ns for r in records)
    for i, r in enumerate(r for r in records if r.global_rank == rank):
        begin = (r.end_ns - (r.gpu_duration_ns or 0) - base) / 1000
        launch = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernelExC",
            "ts": (r.start_ns - base) / 1000,
        }
        events.append({**launch, "dur": 4.0, "args": {"correlation": i}})
        group = [members[r.comm][k] for k in sorted(members[r.comm])]
        events.append(_nccl_kernel(r, begin, i, group))
        gemm = {"ph": "X", "cat": "kernel", "name": "ampere_gemm", "dur": 40, "args": {}}
        events.append({**gemm, "ts": begin - 50})
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": base,
        "traceEvents": events,
    }
