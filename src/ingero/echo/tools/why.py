"""Why nodes are slow, as their agents found: the causal chains of the nodes in question."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ingero.echo.tools.asker import Asker, records

PER_NODE: Final = 3
_CHAINS: Final = f"""SELECT node_id, severity, summary, root_cause, top_frame, process,
  recommendations->>'$[0]' AS advice
FROM causal_chains
WHERE cluster_id = $1 AND detected_at >= make_timestamp($2)
  AND list_contains($3::VARCHAR[], node_id)
QUALIFY row_number() OVER (PARTITION BY node_id ORDER BY
  CASE severity WHEN 'CRITICAL' THEN 0 WHEN 'HIGH' THEN 1 WHEN 'MEDIUM' THEN 2 ELSE 3 END,
  detected_at DESC, chain_id) <= {PER_NODE}
ORDER BY
  CASE severity WHEN 'CRITICAL' THEN 0 WHEN 'HIGH' THEN 1 WHEN 'MEDIUM' THEN 2 ELSE 3 END,
  detected_at DESC, node_id, chain_id"""


class Why(msgspec.Struct):
    """One causal chain of a node."""

    node_id: str
    severity: str | None
    summary: str | None
    root_cause: str | None
    top_frame: str | None
    process: str | None
    advice: str | None

    @property
    def text(self) -> str:
        """Cause, effect and place in the code, in one line."""
        cause = self.root_cause or self.summary or "unknown"
        effect = f"; {self.summary}" if self.root_cause and self.summary else ""
        where = f"; most of it in {self.top_frame}" if self.top_frame else ""
        of = f" of {self.process}" if where and self.process else ""
        return f"{cause}{effect}{where}{of}"


async def load_why(asker: Asker, cluster: str, window: str, nodes: Sequence[str]) -> list[Why]:
    """Return the chains of nodes that were found in the window, the worst first; a few per node."""
    wanted = [cluster, asker.since_us(window), list(nodes)]
    return [msgspec.convert(row, Why) for row in records(await asker.query(_CHAINS, wanted, 1000))]
