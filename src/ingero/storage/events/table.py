"""What a table or view of Echo is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """A table, or a view if it has `sql`; columns are `(name, type, comment)`."""

    name: str
    comment: str
    columns: tuple[tuple[str, str, str], ...]
    sql: str | None = None
