"""`ingero top`, driven by its keys, and its pictures at two sizes."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced
from tests.support.page_fleet import PageFleet
from tests.support.top_messages import AT_S, beginning, node, ranks, snapshot, tick
from textual.pilot import Pilot
from textual.widgets import Input, Static

from ingero.cli.fleet_options import same_fleet
from ingero.cli.top.app import TopApp
from ingero.cli.top.reader import Fail, StreamReader, Take
from ingero.cli.top.table import RowTable
from ingero.contract.live import LiveDelta, LiveMessage
from ingero.errors import AuthError, IngeroError, Unavailable
from ingero.transport.fleet_client import FleetClient
from ingero.transport.tls import ClientTls

PICTURES = Path(__file__).parent / "pictures"
SIZES = [(80, 24), (120, 40)]
PATIENCE_S = 20.0


class FakeReader:
    """Remembers what was asked for; the test feeds the app itself."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, str | None]] = []

    def start(self, take: Take, fail: Fail) -> None: ...

    def ask(self, cluster: str | None, job: str | None) -> None:
        self.asked.append((cluster, job))

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def client(url: str = "https://fleet:8080") -> FleetClient:
    return FleetClient(url=url, tls=ClientTls())


def app(cluster: str | None = None) -> TopApp:
    return TopApp(FakeReader(), client(), cluster)


def shown(top: TopApp) -> list[tuple[str, ...]]:
    return [row.cells for row in top.query_one(RowTable).rows]


def text(top: TopApp, name: str) -> str:
    return str(top.screen.query_one(f"#{name}", Static).render())


async def feed(pilot: Pilot[IngeroError], messages: list[LiveMessage]) -> TopApp:
    top = pilot.app
    assert isinstance(top, TopApp)
    top.feed(messages)
    await pilot.pause()
    return top


async def opened(pilot: Pilot[IngeroError], levels: int) -> TopApp:
    """Open clusters, then jobs, ranks and evidence."""
    top = await feed(pilot, beginning())
    for _ in range(levels):
        await pilot.press("enter")
        top.feed([ranks(), tick("train-a", "train-b")])
        await pilot.pause()
    return top


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "levels"), [("clusters", 0), ("ranks", 2), ("evidence", 3)])
async def test_it_looks_as_its_pictures_do(name: str, levels: int, size: tuple[int, int]) -> None:
    """With INGERO_PICTURES=1 the pictures are drawn again; look at them before you commit."""
    top = app()
    async with top.run_test(size=size) as pilot:
        await opened(pilot, levels)
        drawn = re.sub(r"terminal-\d+", "terminal", top.export_screenshot(title="ingero top"))
    path = PICTURES / f"{name}-{size[0]}x{size[1]}.svg"
    if os.environ.get("INGERO_PICTURES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn)
    assert drawn == path.read_text(), f"{path.name} differs; INGERO_PICTURES=1 draws it again"


async def test_enter_leads_down_to_the_evidence_and_escape_back() -> None:
    top = app()
    async with top.run_test(size=(80, 24)) as pilot:
        await opened(pilot, 0)
        assert [row[:2] for row in shown(top)] == [("train-a", "SLOW"), ("train-b", "ok")]
        assert text(top, "headline").startswith("Rank 19 on gpu-02 is slow; job llama-70b loses")
        await opened(pilot, 2)
        first = shown(top)[0]
        assert first[:5] == ("19", "gpu-02", "dp3", "SLOW", "9.4% ±0.2%")
        assert "AllReduce of 26 MB" in text(top, "why")
        await pilot.press("enter")
        told = text(top, "lines")
        for part in ("gpu-02", "llama-70b", "compute", "AllReduce", "9.4%", "$15.07", "nvidia-smi",
                     "https://fleet:8080/episode/a22dc2a5864bbdc9", "suspect"):  # fmt: skip
            assert part in told
        for level in (64, 2, 2):
            await pilot.press("escape")
            top.feed([ranks(), tick("train-a", "train-b")])
            await pilot.pause()
            assert len(shown(top)) == level
        reader = top._reader
        assert isinstance(reader, FakeReader)
        assert reader.asked == [("train-a", "llama-70b"), (None, None)], "one stream per question"


async def test_a_filter_finds_rows_and_escape_gives_all_back() -> None:
    top = app()
    async with top.run_test(size=(80, 24)) as pilot:
        await opened(pilot, 2)
        await pilot.press("slash", *"gpu-03 dp1")
        assert [row[0] for row in shown(top)] == ["25"]
        assert "1 of 64" in text(top, "where")
        await pilot.press("escape")
        assert len(shown(top)) == 64
        assert not top.query_one("#filter", Input).display


async def test_s_sorts_by_each_column_in_turn() -> None:
    top = app()
    async with top.run_test(size=(80, 24)) as pilot:
        await opened(pilot, 2)
        await pilot.press("s")
        assert [row[0] for row in shown(top)[:2]] == ["63", "62"]
        await pilot.press("s")
        assert shown(top)[0][1] == "gpu-00"
        await pilot.press("S", "S")
        assert shown(top)[0][0] == "19", "the first order is the worst first"


async def test_y_copies_the_command_of_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    top = app()
    monkeypatch.setattr(top, "copy_to_clipboard", copied.append)
    async with top.run_test(size=(80, 24)) as pilot:
        await opened(pilot, 2)
        await pilot.press("y")
        assert copied == ["nvidia-smi -q -d CLOCK,PERFORMANCE"]


async def test_a_copied_command_asks_the_same_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the next step has no command, it is a replay: by the Fleet that is shown."""
    copied: list[str] = []
    given = same_fleet("https://fleet:8080", None, "my lab")
    top = TopApp(FakeReader(), client(), None, given)
    monkeypatch.setattr(top, "copy_to_clipboard", copied.append)
    shown_first = snapshot()
    plain = replaced(shown_first.verdicts[0], next_step="look at the host")
    async with top.run_test(size=(80, 24)) as pilot:
        await feed(pilot, [replaced(shown_first, verdicts=[plain]), tick("train-a")])
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press("y")
    assert copied == [
        f"ingero replay {plain.episode} --fleet https://fleet:8080 --context 'my lab'"
    ]
    assert same_fleet(None, None, None) == ""


async def test_the_countdown_of_ranks_that_are_still_learned() -> None:
    top = app("train-b")
    async with top.run_test(size=(80, 24)) as pilot:
        await feed(pilot, beginning())
        told = text(top, "headline")
        assert "learning what is normal for 24 ranks, about 12 s more" in told


async def test_the_countdown_of_nodes_that_calibrate() -> None:
    """It is counted down since the last push; an older agent sends none."""
    waiting = {"state": "calibrating", "score": 0.5}
    nodes = [node(0), node(1, ready_s=70, **waiting), node(2, ready_s=40, **waiting)]
    top = app("train-a")
    async with top.run_test(size=(120, 40)) as pilot:
        view = replaced(snapshot(verdicts=()), nodes=nodes, jobs=[])
        await feed(pilot, [view, tick("train-a")])
        assert "2 nodes calibrate, about 68 s more" in text(top, "headline")
        await pilot.press("enter")
        states = {cells[0]: cells[1] for cells in shown(top)}
        assert states["gpu-02"] == "calibrating, 38 s left"
        old = replaced(view, nodes=[node(3, **waiting)])
        await feed(pilot, [old, tick("train-a")])
        assert "1 node calibrates" in text(top, "headline")
        assert "more" not in text(top, "headline").partition("calibrates")[2]


async def test_only_the_slow_and_the_worst_are_listed() -> None:
    top = app("train-a")
    many = [node(number, node_id=f"gpu-{number:05d}", score=0.9) for number in range(1000)]
    many[700] = node(0, node_id="gpu-00700", straggler=True)
    async with top.run_test(size=(80, 24)) as pilot:
        view = snapshot()
        await feed(pilot, [replaced(view, nodes=many, jobs=[]), tick("train-a")])
        await pilot.press("enter")
        assert len(shown(top)) == 500
        assert shown(top)[0][:2] == ("gpu-00700", "SLOW")
        assert "500 of 1000" in text(top, "where")
        await pilot.press("slash", *"gpu-00999")
        assert [row[0] for row in shown(top)] == ["gpu-00999"], "a filter finds the rest"


async def test_no_key_is_missed_while_much_changes() -> None:
    top = app("train-a")
    many = [node(number, node_id=f"gpu-{number:05d}", score=0.9) for number in range(1000)]
    async with top.run_test(size=(80, 24)) as pilot:
        await feed(pilot, [replaced(snapshot(), nodes=many, jobs=[]), tick("train-a")])
        await pilot.press("enter")
        for second in range(5):
            changed = [replaced(each, seen=AT_S + second) for each in many[:50]]
            top.feed([LiveDelta(cluster_id="train-a", at=AT_S, nodes=changed), tick("train-a")])
            await pilot.press(*["down"] * 10)
        current = top.query_one(RowTable).current
        assert current is not None and top.query_one(RowTable).rows.index(current) == 50


async def test_names_with_markup_stay_text() -> None:
    name = "[red]x[/red]\x1b[2J"
    top = app("train-a")
    async with top.run_test(size=(80, 24)) as pilot:
        view = replaced(snapshot(), nodes=[node(0, node_id=name)], jobs=[])
        await feed(pilot, [view, tick("train-a")])
        await pilot.press("enter", "enter")
        assert "[red]x[/red]\\x1b[2J" in text(top, "lines")
        drawn = top.export_screenshot()
        assert "[red]x[/red]" in drawn.replace("&#160;", " ")


async def test_silence_and_a_restart_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    top = app()
    async with top.run_test(size=(80, 24)) as pilot:
        await opened(pilot, 0)
        top.fail(Unavailable("the stream broke"))
        monkeypatch.setattr(top, "_heard_s", time.monotonic() - 4)
        top.draw()
        assert "Nothing was heard from Fleet for 4 s: the stream broke" in text(top, "headline")
        await feed(pilot, [tick("train-a", "train-b")])
        assert text(top, "headline").startswith("Rank 19")
        assert [line for _, line in top.state.log][-2:] == [
            "Fleet does not answer",
            "Fleet answers again",
        ]


async def test_a_missing_token_ends_it() -> None:
    top = app()
    async with top.run_test(size=(80, 24)):
        top.fail(AuthError("Fleet wants a token"))
    assert isinstance(top.return_value, AuthError)


async def test_it_reads_the_stream_of_the_page_and_silences_a_node() -> None:
    with PageFleet(nodes=8, ranks=8) as fleet:
        fleet.name_slow(3)
        asked = client(fleet.url)
        top = TopApp(StreamReader(asked, None), asked)
        async with top.run_test(size=(80, 24)) as pilot:

            async def until(wanted: str) -> None:
                end_s = time.monotonic() + PATIENCE_S
                while wanted not in text(top, "headline") and time.monotonic() < end_s:
                    await pilot.pause(0.1)
                assert wanted in text(top, "headline")

            await until("Rank 3 on gpu-00003 is slow")
            await pilot.press("enter", "enter")
            end_s = time.monotonic() + PATIENCE_S
            while not shown(top) and time.monotonic() < end_s:
                await pilot.pause(0.1)
            assert shown(top)[0][:2] == ("3", "gpu-00003")
            await pilot.press("m", *"fan", "enter")
            await until("Nobody else is slow; silenced: rank 3 on gpu-00003")
            assert [line for _, line in top.state.log][-1] == "gpu-00003 is silenced"
            await pilot.press("m")
            await until("Rank 3 on gpu-00003 is slow")
            address = fleet.url.removeprefix("http://")
            fleet.stop()
            fleet.slow = None
            fleet.start(address)
            await until("Nobody is slow")
