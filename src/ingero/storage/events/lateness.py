"""The view that compares the ranks of each collective: lateness and peer lag."""

from typing import Final

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.lag import SYNCHRONISING_OPS
from ingero.storage.events.table import Table

_KEPT: Final = (
    "ts", "received_ts", "cluster_id", "node_id", "job_id", "global_rank", "comm_id_hash",
    "comm_seq", "op_type", "rank", "nranks", "bytes", "weight",
)  # fmt: skip
_SYNCHRONISING: Final = ", ".join(
    f"'{op}'" for op in sorted(SYNCHRONISING_OPS - POINT_TO_POINT_OPS)
)
_OWN_MS: Final = "coalesce(gpu_duration_ns / 1e6, duration_ms)"


def lateness_view(collectives: Table) -> Table:
    """Return the view over the table of collectives, with the columns that it takes from there."""
    kept = {name: (name, kind, comment) for name, kind, comment in collectives.columns}
    return Table(
        "collective_lateness",
        "Collectives of which enough ranks were recorded, one row per rank: how late it came, and "
        "how long it took compared with its peers.",
        (
            *(kept[name] for name in _KEPT),
            (
                "lateness_ms",
                "DOUBLE",
                "Longest duration minus own, on the GPUs' clocks; positive is late. NULL where not "
                "every rank was timed by its GPU, unless the sender gave it",
            ),
            ("peer_lag_ms", "DOUBLE", "Own duration minus the median of the operation"),
        ),
        sql=f"""SELECT {", ".join(_KEPT)},
  coalesce(lateness_ms, CASE WHEN op_type IN ({_SYNCHRONISING})
      AND count(gpu_duration_ns) OVER ranks = count(*) OVER ranks
    THEN (max(gpu_duration_ns) OVER ranks - gpu_duration_ns::HUGEINT) / 1e6 END) AS lateness_ms,
  coalesce(peer_lag_ms, {_OWN_MS} - median({_OWN_MS}) OVER ranks) AS peer_lag_ms
FROM {collectives.name} WHERE comm_seq IS NOT NULL AND nranks > 1
WINDOW ranks AS (PARTITION BY cluster_id, job_id, comm_id_hash, comm_seq, op_type)
QUALIFY count(*) OVER ranks >= least(nranks, greatest(3, nranks // 2 + nranks % 2))""",
    )
