"""A trace database with one causal chain and the slow calls behind it."""

from pathlib import Path

from ingero.contract.chain import Chain, Severity, TimelineEntry
from ingero.contract.events import Layer
from ingero.core.recording.stacks import Frame, encode_frames, stack_hash
from ingero.storage.trace.chains import UPSERT_CHAIN, UPSERT_HISTORY, chain_row, history_row
from ingero.storage.trace.database import TraceDb

SYNC = (1, 5)
FRAMES = (
    Frame(symbol="cudaStreamSynchronize", file="libcudart.so.12"),
    Frame(py_file="loader.py", py_func="next_batch", py_line=47),
    Frame(py_file="train.py", py_func="main", py_line=12),
)
CHAIN = Chain(
    name="cpu-contention-sync",
    severity=Severity.HIGH,
    summary="cudaStreamSync 40x slower in its tail",
    root_cause="backup.service took the CPU of the data loader",
    explanation="the thread was off the CPU while it should have fed the GPU",
    recommendations=("move backup.service to other cores",),
    cuda_op="cudaStreamSync",
    p99_ns=80_000_000,
    p50_ns=2_000_000,
    tail_ratio=40.0,
    timeline=(TimelineEntry(Layer.CUDA, "cudaStreamSync", "p99 80 ms"),),
    pid=4242,
)


def record(path: Path, node: str, detected_at_ns: int, chain: Chain = CHAIN) -> None:
    """Write what a recorder writes: slow calls with their stack, and the chain found in them."""
    with TraceDb(path, node) as db:
        number = stack_hash(FRAMES)
        db.execute(
            "INSERT OR IGNORE INTO stack_traces VALUES (?, ?, ?)", (number, *encode_frames(FRAMES))
        )
        db.execute("INSERT OR IGNORE INTO process_names VALUES (4242, 'python', 1)")
        for name in db.next_ids(5):
            db.execute(
                "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, stack_hash, "
                "node) VALUES (?, ?, 4242, 4242, ?, ?, 80000000, ?, ?)",
                (name, detected_at_ns - 10**9, *SYNC, number, node),
            )
        db.write(
            [
                (UPSERT_CHAIN, [chain_row(node, detected_at_ns, chain)]),
                (UPSERT_HISTORY, [history_row(node, detected_at_ns, chain)]),
            ]
        )
