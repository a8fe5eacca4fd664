"""The two dialogs of `ingero top`: silence a node, and what the keys do."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from ingero.contract.silence import SilenceRequest
from ingero.core.units import parse_duration_s
from ingero.errors import IngeroError

HELP = """\
Enter       open: cluster, job, rank, evidence
Esc         back
/           filter; every word must occur in a row
s, S        sort by the next or the last column
y           copy the command of the next step
m           silence the node under the cursor, or lift its silence
l           show or hide the log
q           quit

Rows are the slow ones and the worst 500; a filter finds the others.
The list follows Fleet once a second, as its page does."""


class SilenceDialog(ModalScreen[str | None]):
    """Asks how long and why; `send` raises where Fleet refuses."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, target: str, cluster: str, send: Callable[[SilenceRequest], None]) -> None:
        super().__init__()
        self._target, self._cluster, self._send = target, cluster, send

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(f"Silence {self._target}", markup=False)
            yield Label("It is still measured and shown, but causes no alerts.", markup=False)
            yield Input("4h", placeholder="how long: 30m, 4h, 1d", id="how-long")
            yield Input(placeholder="why", id="why")
            yield Label("Enter: silence   Tab: next field   Esc: cancel", id="said", markup=False)

    def on_mount(self) -> None:
        self.query_one("#why").focus()

    def on_input_submitted(self) -> None:
        how_long, why = (self.query_one(f"#{name}", Input).value for name in ("how-long", "why"))
        if not why.strip():
            self._say("a reason is needed: others will read it")
            self.query_one("#why").focus()
            return
        try:
            for_s = parse_duration_s(how_long)
        except ValueError as error:
            self._say(str(error))
            return
        request = SilenceRequest(
            target=self._target, for_s=for_s, why=why.strip(), cluster=self._cluster
        )
        self._say("asking Fleet …")
        self.run_worker(lambda: self._ask(request), thread=True)

    def _ask(self, request: SilenceRequest) -> None:
        try:
            self._send(request)
        except IngeroError as error:
            self.app.call_from_thread(self._say, str(error))
        else:
            self.app.call_from_thread(self.dismiss, f"{self._target} is silenced")

    def _say(self, text: str) -> None:
        self.query_one("#said", Label).update(text)


class HelpDialog(ModalScreen[None]):
    """What the keys do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss(None)", "Close")
    ]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(HELP, markup=False)
