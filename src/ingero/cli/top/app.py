"""`ingero top`: the slow and the worst of all clusters, as Fleet's page shows them."""

import time
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, RichLog, Static

from ingero.cli.show.table import printable
from ingero.cli.show.verdicts import ago
from ingero.cli.show.wrap import wrap
from ingero.cli.top.dialogs import HelpDialog, SilenceDialog
from ingero.cli.top.evidence import evidence_lines, find_verdict, next_command
from ingero.cli.top.reader import Reader
from ingero.cli.top.rows import (
    ALL_NODES,
    Row,
    Table,
    calibration,
    chosen,
    cluster_rows,
    job_rows,
    node_rows,
    rank_rows,
    sort_key,
)
from ingero.cli.top.state import URGENCY, TopState
from ingero.cli.top.table import RowTable
from ingero.contract.api_paths import FLEET_SILENCES, FLEET_SILENCES_LIFT
from ingero.contract.fleet_api import LiftedSilences
from ingero.contract.live import Headline, LiveMessage, LiveSnapshot
from ingero.contract.silence import LiftRequest, Silence, SilenceRequest
from ingero.contract.verdict import Verdict
from ingero.errors import AuthError, IngeroError
from ingero.transport.fleet_client import FleetClient

QUIET_S: Final = 3.0  # without a message, what is shown is old
KEYS: Final = "⏎ open  esc back  / filter  s sort  y copy  m silence  l log  ? help  q quit"
NAMED: Final = 11  # columns of the names in the evidence
_COLOURS: Final = {
    "slow": "bold red",
    "fleet_event": "bold red",
    "not_sure": "bold yellow",
    "suspect": "yellow",
    "silenced": "yellow",
    "calm": "bold green",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the terminal is: the levels that are None have not been opened."""

    cluster: str | None = None
    job: str | None = None  # ALL_NODES for the nodes of the cluster
    row: Row | None = None  # whose evidence is shown


class TopApp(App[IngeroError]):
    """The terminal; it is fed by `reader` and sends silences with `client`.

    `same_fleet` are the options with which a copied command asks the same Fleet.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #where { height: 1; background: $panel; text-style: bold; }
    #headline { height: auto; max-height: 4; padding: 0 1; }
    RowTable { height: 1fr; padding: 0 1; }
    #evidence { height: 1fr; padding: 0 1; display: none; }
    #why { height: auto; max-height: 4; padding: 0 1; color: $text-muted; }
    #log { height: 6; border-top: solid $panel; padding: 0 1; display: none; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #keys { height: 1; background: $panel; }
    ModalScreen { align: center middle; }
    ModalScreen Vertical { width: 70; max-width: 100%; height: auto; border: round $primary;
        padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "up", show=False),
        Binding("slash", "filter", show=False),
        Binding("s", "sort(1)", show=False),
        Binding("S", "sort(-1)", show=False),
        Binding("y", "copy", show=False),
        Binding("m", "silence", show=False),
        Binding("l", "log", show=False),
        Binding("question_mark", "help", show=False),
        Binding("q,ctrl+c", "quit", show=False),
    ]

    def __init__(
        self, reader: Reader, client: FleetClient, cluster: str | None = None, same_fleet: str = ""
    ) -> None:
        super().__init__()
        self._same_fleet = same_fleet
        self.state = TopState()
        self._reader, self._client, self._only = reader, client, cluster
        self._place = Place()
        self._sort: int | None = None  # by which column; None is the worst first
        self._heard_s = time.monotonic()
        self._problem = ""
        self._shown_log = 0

    def compose(self) -> ComposeResult:
        yield Static(id="where", markup=False)
        yield Static(id="headline", markup=False)
        yield RowTable()
        yield VerticalScroll(Static(id="lines", markup=False), id="evidence")
        yield Static(id="why", markup=False)
        yield RichLog(id="log", wrap=True)
        yield Input(id="filter", placeholder="filter: words that a row must have", compact=True)
        yield Static(KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(RowTable).focus()
        self._reader.start(
            lambda messages: self.call_from_thread(self.feed, messages),
            lambda error: self.call_from_thread(self.fail, error),
        )
        self.set_interval(1.0, self._beat)
        self.draw()

    def on_unmount(self) -> None:
        self._reader.close()

    def feed(self, messages: list[LiveMessage]) -> None:
        """Take the messages of a second."""
        if self._problem:
            self.state.say("Fleet answers again")
        self._heard_s, self._problem = time.monotonic(), ""
        for message in messages:
            self.state.take(message)
        if self._only is not None and self._place == Place() and self._only in self.state.clusters:
            self._place = Place(self._only)
        self.draw()

    def fail(self, error: IngeroError) -> None:
        """Say why nothing comes; end where Fleet will not answer without a token, or never did."""
        if isinstance(error, AuthError) or not self.state.at:
            self.exit(error)
            return
        if not self._problem:
            self.state.say("Fleet does not answer", self.state.at)
        self._problem = str(error)
        self.draw()

    def _beat(self) -> None:
        if time.monotonic() - self._heard_s > QUIET_S:
            self.draw()

    @property
    def _view(self) -> LiveSnapshot | None:
        return self.state.clusters.get(self._place.cluster or "")

    def draw(self, key: str | None = None) -> None:
        """Draw everything as it is now."""
        table, row = self.query_one(RowTable), self._place.row
        columns, rows = self._table()
        wanted = self.query_one("#filter", Input).value
        sort = None if self._sort is None else sort_key(columns, self._sort % len(columns))
        table.sorted_by = None if self._sort is None else self._sort % len(columns)
        table.nothing = "no row has these words" if rows and wanted else self._nothing()
        table.show(columns, chosen(rows, wanted, sort), key)
        self.query_one("#evidence").display = row is not None
        table.display = row is None
        if row is not None:
            self.query_one("#lines", Static).update(self._evidence(row))
        self.query_one("#where", Static).update(self._where(len(rows), len(table.rows)))
        self.query_one("#headline", Static).update(self._headline())
        self.query_one("#why", Static).update(self._why(table.current))
        self._draw_log()

    def _table(self) -> Table:
        view, place = self._view, self._place
        if view is None:
            return cluster_rows(self.state)
        if place.job is None:
            return job_rows(view)
        if place.job == ALL_NODES:
            return node_rows(view, self.state.at)
        return rank_rows(self.state, view, place.job)

    def _nothing(self) -> str:
        if not self.state.at:
            return "connecting …"
        if self._place.job:
            return "waiting for the ranks of this job …"
        return "no cluster has pushed yet; start `ingero fleet-push` on a node"

    def _where(self, count: int, shown: int) -> Text:
        place, at = self._place, self.state.at
        steps = [self._client.url, place.cluster, "nodes" if place.job == ALL_NODES else place.job]
        if place.row is not None:
            steps.append(" ".join(place.row.cells[:2]))
        path = " › ".join(printable(step) for step in steps if step)
        clock = time.strftime("%H:%M:%S", time.localtime(at)) if at else ""
        few = f"{shown} of {count}  " if shown < count else ""
        right = f"{few}{clock} "
        room = max(self.size.width - len(right) - 2, 10)
        left = path if len(path) <= room else "…" + path[-room + 1 :]
        return Text(f" {left}{right.rjust(self.size.width - len(left) - 1)}", no_wrap=True)

    def _headline(self) -> Text:
        quiet_s = time.monotonic() - self._heard_s
        if self.state.at and quiet_s > QUIET_S:
            why = f": {self._problem}" if self._problem else ""
            old = f"Nothing was heard from Fleet for {ago(quiet_s)}{why}. What you see is old."
            return Text(printable(old), "bold reverse")
        views = [self._view] if self._view else list(self.state.clusters.values())
        if not views:
            return Text("connecting …" if not self.state.at else "No node has pushed yet.")
        worst = min(views, key=lambda view: URGENCY.index(view.summary.headline.kind))
        line = worst.summary.headline
        text = Text(printable(line.text), _COLOURS.get(line.kind, "bold"))
        text.append(printable(self._details(worst, line)), "not bold dim")
        return text

    def _details(self, view: LiveSnapshot, line: Headline) -> str:
        """Return since when, and how long until more can be said."""
        parts = []
        if line.since is not None:
            parts.append(f"for {ago(max(self.state.at - line.since, 0.0))}")
        ranks = view.summary.ranks
        if ranks.learning:
            wait = "" if ranks.ready_s is None else f", about {ago(ranks.ready_s)} more"
            parts.append(f"learning what is normal for {ranks.learning} ranks{wait}")
        if waiting := calibration(view, self.state.at):
            parts.append(waiting)
        return f"  {'; '.join(parts)}" if parts else ""

    def _why(self, row: Row | None) -> Text:
        verdict = self._verdict(row) if row and self._place.row is None else None
        if verdict is None:
            return Text("")
        at = f"waited for at {verdict.collective}" if verdict.collective else ""
        parts = [part for part in (verdict.cause, at, verdict.evidence) if part]
        text = Text(printable("; ".join(parts)))
        if verdict.next_step:
            text.append(f"\nnext: {printable(verdict.next_step)}")
        return text

    def _verdict(self, row: Row | None) -> Verdict | None:
        """Return the verdict that a row is about; of a cluster or job, the one that costs most."""
        place, views = self._place, self.state.clusters
        view = self._view or (views.get(row.key) if row else None)
        if view is None or row is None:
            return None
        if place.cluster is not None and place.job is not None:
            rank = row.cells[0] if place.job != ALL_NODES else ""
            return find_verdict(view, row.node, int(rank) if rank.isdigit() else None)
        job = row.key if place.cluster is not None else None
        slow = [v for v in view.verdicts if v.state == "straggler" and job in (None, v.job)]
        return max(slow, key=lambda v: (v.usd_per_hour or 0.0, v.loss or 0.0), default=None)

    def _evidence(self, row: Row) -> Text:
        verdict, text = self._verdict(row), Text()
        columns = self.query_one(RowTable).columns
        now = next((each for each in self.query_one(RowTable).rows if each.key == row.key), row)
        lines = [(c.title, cell) for c, cell in zip(columns, now.cells, strict=True) if cell]
        view = self._view
        if verdict is not None and view is not None:
            lines = evidence_lines(view, verdict, self.state.at, self._client.url, self._same_fleet)
        else:
            lines.append(("verdict", "none: nothing is held against it"))
        for name, value in lines:
            parts = wrap(printable(value), self.size.width - NAMED - 3)
            text.append(name.ljust(NAMED), "bold")
            text.append(("\n" + " " * NAMED).join(parts) + "\n")
        return text

    def _draw_log(self) -> None:
        log, new = self.query_one("#log", RichLog), self.state.logged - self._shown_log
        self._shown_log = self.state.logged
        for at, line in list(self.state.log)[max(len(self.state.log) - new, 0) :]:
            clock = time.strftime("%H:%M:%S", time.localtime(at))
            log.write(Text(f"{clock} {printable(line)}"))

    @on(RowTable.Opened)
    def _open(self, opened: RowTable.Opened) -> None:
        place, row = self._place, opened.row
        if place.cluster is None:
            self._go(Place(row.key))
        elif place.job is None:
            self._go(Place(place.cluster, row.key))
        elif place.row is None:
            self._go(Place(place.cluster, place.job, row))

    @on(RowTable.Moved)
    def _moved(self) -> None:
        self.query_one("#why", Static).update(self._why(self.query_one(RowTable).current))

    def _go(self, place: Place, key: str | None = None) -> None:
        if place.row is None:
            self.query_one("#filter", Input).value = ""
            self._sort = None
        if place.job != self._place.job:
            self.state.forget_job()
            job = None if place.job == ALL_NODES else place.job
            self._reader.ask(place.cluster if job else self._only, job)
        self._place = place
        self.draw("" if key is None else key)
        (self.query_one("#evidence") if place.row else self.query_one(RowTable)).focus()

    def action_up(self) -> None:
        """Close the filter, or go one level up."""
        field, place = self.query_one("#filter", Input), self._place
        if field.display:
            field.value, field.display = "", False
            self.query_one(RowTable).focus()
        elif place.row is not None:
            self._go(Place(place.cluster, place.job), place.row.key)
        elif place.job is not None:
            self._go(Place(place.cluster), place.job)
        elif place.cluster is not None and self._only is None:
            self._go(Place(), place.cluster)

    def action_filter(self) -> None:
        """Open the filter."""
        if self._place.row is None:
            field = self.query_one("#filter", Input)
            field.display = True
            field.focus()

    @on(Input.Changed, "#filter")
    def _filtered(self) -> None:
        self.draw()

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = bool(field.value)
        self.query_one(RowTable).focus()

    def action_sort(self, by: int) -> None:
        """Sort by the next or the last column; the first order is the worst first."""
        places = [None, *range(len(self.query_one(RowTable).columns))]
        at = places.index(self._sort) if self._sort in places else 0
        self._sort = places[(at + by) % len(places)]
        self.draw()

    def action_copy(self) -> None:
        """Copy the command of the next step."""
        verdict = self._verdict(self._place.row or self.query_one(RowTable).current)
        if verdict is None:
            self.notify("nobody is slow here", timeout=3)
            return
        command = next_command(verdict, self._same_fleet)
        self.copy_to_clipboard(command)
        self.notify(f"copied: {printable(command)}", timeout=5, markup=False)

    def action_silence(self) -> None:
        """Silence the node under the cursor, or lift its silence."""
        row, view = self._place.row or self.query_one(RowTable).current, self._view
        if row is None or view is None or not row.node:
            self.notify("open a job or the nodes, and choose one", timeout=3)
            return
        if any(each.target == row.node for each in view.silences):
            request = LiftRequest(target=row.node, cluster=view.cluster_id)
            self.run_worker(lambda: self._lift(request), thread=True)
            return
        self.push_screen(SilenceDialog(row.node, view.cluster_id, self._silence), self._said)

    def _silence(self, request: SilenceRequest) -> None:
        self._client.post(FLEET_SILENCES, request, Silence)

    def _lift(self, request: LiftRequest) -> None:
        try:
            self._client.post(FLEET_SILENCES_LIFT, request, LiftedSilences)
            said = f"{request.target} is no longer silenced"
        except IngeroError as error:
            said = str(error)
        self.call_from_thread(self._said, said)

    def _said(self, text: str | None) -> None:
        if text:
            self.state.say(text)
            self.notify(printable(text), timeout=5, markup=False)
            self.draw()

    def action_log(self) -> None:
        """Show or hide the log."""
        log = self.query_one("#log")
        log.display = not log.display

    def action_help(self) -> None:
        """Show what the keys do."""
        self.push_screen(HelpDialog())
