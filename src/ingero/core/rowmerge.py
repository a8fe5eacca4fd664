"""Rows of many nodes as one table: the first answer fixes the columns, each row names its node."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NODE_COLUMN = "node"


@dataclass(slots=True)
class RowMerge:
    """The merged table, built answer by answer; it keeps only the header, counts and warnings."""

    header: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    answered: int = 0
    failed: int = 0
    left_out: int = 0
    rows: int = 0
    nodes: set[str] = field(default_factory=set)
    _columns: list[str] | None = None

    def fail(self, node: str, reason: str) -> None:
        """Record that a node gave no answer."""
        self.failed += 1
        self.warnings.append(f"node {node}: {reason}")

    def expect(self, columns: Sequence[str]) -> None:
        """Fix the columns before the first answer, for callers that read them by position."""
        self._columns = list(columns)
        self.header = list(columns) if NODE_COLUMN in columns else [NODE_COLUMN, *columns]

    def add(
        self, node: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> list[list[Any]]:
        """Return the rows of one node in the columns of the merged table.

        A node with other columns contributes no rows and a warning.
        """
        if any(len(row) != len(columns) for row in rows):
            self.fail(
                node,
                f"its rows do not have the {len(columns)} values its columns promise; left out",
            )
            return []
        self.answered += 1
        if not columns:
            return []
        if self._columns is None:
            self.expect(columns)
        assert self._columns is not None
        if list(columns) != self._columns:
            self.left_out += 1
            self.warnings.append(
                f"node {node}: its columns ({', '.join(columns)}) differ from"
                f" ({', '.join(self._columns)}); left out"
            )
            return []
        self.rows += len(rows)
        if NODE_COLUMN in columns:
            position = list(columns).index(NODE_COLUMN)
            self.nodes.update(str(row[position]) for row in rows)
            return [list(row) for row in rows]
        if rows:
            self.nodes.add(node)
        return [[node, *row] for row in rows]

    @property
    def is_partial(self) -> bool:
        """Whether the rows of some node are missing."""
        return self.failed + self.left_out > 0

    @property
    def is_total_failure(self) -> bool:
        """Whether no node answered."""
        return self.failed > 0 and self.answered == 0
