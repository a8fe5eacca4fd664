"""A table of which only the visible lines are drawn, so that a thousand rows cost nothing."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from ingero.cli.show.table import columns_of, printable
from ingero.cli.top.rows import Column, Row

GAP = 2


class RowTable(Widget, can_focus=True):
    """Rows with a cursor that follows its row when the order changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """Enter or a second click on a row."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class Moved(Message):
        """The cursor is on another row."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: Sequence[Column] = ()
        self.rows: list[Row] = []
        self.sorted_by: int | None = None
        self.nothing = ""  # what is shown where there is no row
        self._cursor = 0
        self._first = 0  # of the visible rows

    @property
    def current(self) -> Row | None:
        """The row under the cursor."""
        return self.rows[self._cursor] if self.rows else None

    def show(self, columns: Sequence[Column], rows: list[Row], key: str | None = None) -> None:
        """Show these rows; the cursor stays on its row, or goes to the one named `key`.

        Where there is no such row, it goes to the first.
        """
        before = self.current.key if self.current else ""
        places = {row.key: place for place, row in enumerate(rows)}
        self.columns, self.rows = columns, rows
        near = min(self._cursor, max(len(rows) - 1, 0)) if key is None else 0
        self._cursor = places.get(before if key is None else key, near)
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        before = self._cursor
        self._cursor = max(0, min(self._cursor + by, len(self.rows) - 1))
        if self._cursor != before:
            self.post_message(self.Moved())
        self.refresh()

    def action_page(self, by: int) -> None:
        """Move the cursor by a screen."""
        self.action_move(by * max(self.size.height - 2, 1))

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self.current is not None:
            self.post_message(self.Opened(self.current))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_move(-3)

    def on_click(self, event: events.Click) -> None:
        place = self._first + event.y - 1
        if event.y - 1 >= 0 and place < len(self.rows):
            if place == self._cursor:
                self.action_open()
            self.action_move(place - self._cursor)

    def render(self) -> Text:
        """Draw the head and the rows that are visible."""
        room = max(self.size.height - 1, 1)
        self._first = max(0, min(self._first, len(self.rows) - room))
        self._first = min(self._first, self._cursor)
        self._first = max(self._first, self._cursor - room + 1)
        shown = self.rows[self._first : self._first + room]
        widths = self._widths(shown)
        text = Text(no_wrap=True, overflow="ellipsis")
        heads = [column.title for column in self.columns]
        if self.sorted_by is not None and self.sorted_by < len(heads):
            heads[self.sorted_by] += "▼" if self.columns[self.sorted_by].is_number else "▲"
        text.append(self._line(heads, widths), "bold underline")
        for place, row in enumerate(shown, self._first):
            text.append("\n")
            text.append(self._line(row.cells, widths), self._style(row, place == self._cursor))
        if not self.rows:
            text.append(f"\n{self.nothing}", "dim")
        return text

    def _style(self, row: Row, is_current: bool) -> str:
        colour = "yellow" if row.is_muted else "bold red" if row.is_slow else ""
        return f"{colour} reverse".strip() if is_current else colour

    def _widths(self, shown: list[Row]) -> list[int]:
        """Give every column the width of its widest cell; the widest texts give way first."""
        widths = [
            max([columns_of(column.title) + 1, *(columns_of(row.cells[i]) for row in shown)])
            for i, column in enumerate(self.columns)
        ]
        too_wide = sum(widths) + GAP * (len(widths) - 1) - self.size.width
        while too_wide > 0 and max(widths, default=0) > 8:
            widest = widths.index(max(widths))
            widths[widest] -= 1
            too_wide -= 1
        return widths

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        parts = []
        for cell, width, column in zip(cells, widths, self.columns, strict=True):
            safe = printable(cell)
            while columns_of(safe) > width:
                safe = safe[: -2 if safe.endswith("…") else -1] + "…"
            pad = " " * (width - columns_of(safe))
            parts.append(pad + safe if column.is_number else safe + pad)
        return (" " * GAP).join(parts).ljust(self.size.width)
