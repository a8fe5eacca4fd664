"""What a collective record may hold before it becomes columns: numbers of foreign files are only believed in range."""

from ingero.contract.collective import CollectiveRecord

_RANGES = {
    "global_rank": 1 << 31, "comm": 1 << 64, "seq": 1 << 63, "rank": 1 << 31, "nranks": 1 << 31, "peer": 1 << 31,
    "size_bytes": 1 << 63, "start_ns": 1 << 62, "end_ns": 1 << 62, "gpu_duration_ns": 1 << 62, "stream": 1 << 63,
}  # fmt: skip


def checked(record: CollectiveRecord) -> CollectiveRecord:
    """The record itself; raises ValueError for a number out of range or an end before the start."""
    for name, bound in _RANGES.items():
        value = getattr(record, name)
        if value is not None and not 0 <= value < bound:
            raise ValueError(f"{name} is {value}")
    if record.end_ns < record.start_ns:
        raise ValueError(f"it ends at {record.end_ns}, before it was enqueued at {record.start_ns}")
    return record
