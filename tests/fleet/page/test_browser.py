"""Fleet's page in a real Chromium."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from tests.support.browser import chromium, tab
from tests.support.page_fleet import CLUSTER, JOB, PageFleet
from tests.support.tokens import private
from tests.support.waiting import until

PAINT_MS = 10.0
SLACK = 5  # tests share the machine; `make bench-page` holds the figure itself
TOKEN = "token-for-the-page-0123456789"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def job() -> Iterator[PageFleet]:
    """A job of 16 ranks on 48 nodes, in which rank 11 was just named; nobody hears of it."""
    alerts = {"targets": {"webhook/pager": {"url": "http://127.0.0.1:9/"}}}
    with PageFleet(nodes=48, ranks=16, alerts=alerts) as fleet:
        fleet.name_slow(11)
        yield fleet


def episode_of(fleet: PageFleet) -> str:
    assert fleet.fleet is not None
    service = fleet.fleet
    found: str = fleet.call(lambda: service.verdicts.open_verdicts()[0][1].episode)
    return found


def problems_of(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found]


def test_the_slowed_node_is_the_first_sentence_within_three_seconds(browser: Browser) -> None:
    """Ten thousand nodes, one of which becomes slow while the page is open."""
    with PageFleet(nodes=10_000) as fleet, tab(browser) as (page, said):
        page.goto(fleet.url)
        expect(page.locator("h1")).to_have_text("Nobody is slow.")
        name = fleet.names[4242]
        fleet.slow_nodes.add(name)
        fleet.call(lambda: fleet.push(4242))
        expect(page.locator("h1")).to_contain_text(f"{name} is slow", timeout=3000)
        expect(page).to_have_title(re.compile(f"^{name} is slow"))
        until(lambda: page.evaluate("ingero.paints.length >= 5"), "the map is not painted")
        paints = sorted(page.evaluate("ingero.paints"))
        assert paints[len(paints) // 2] < SLACK * PAINT_MS
        assert said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_is_accessible_and_quiet(
    browser: Browser, job: PageFleet, scheme: str
) -> None:
    screens = {
        "/": "Rank 11 on gpu-00011 is slow",
        f"/job/{JOB}": f"Rank 11 on gpu-00011 is slow in job {JOB}",
        f"/node/{job.names[11]}?cluster_id={CLUSTER}": "gpu-00011 is slow",
        f"/episode/{episode_of(job)}": "Rank 11 on gpu-00011 is slow",
        "/agents": "48 agents, none is silent",
    }
    with tab(browser, color_scheme=scheme) as (page, said):
        for path, sentence in screens.items():
            page.goto(job.url + path)
            expect(page.locator("h1")).to_contain_text(sentence)
            expect(page.get_by_text("asking …")).to_have_count(0)
            assert problems_of(page) == [], path
        assert said == []


def test_forced_colours_and_a_narrow_window_hide_nothing(browser: Browser, job: PageFleet) -> None:
    settings = {"forced_colors": "active", "reduced_motion": "reduce"}
    with tab(browser, viewport={"width": 390, "height": 800}, **settings) as (page, said):
        page.goto(job.url)
        expect(page.locator("h1")).to_contain_text("Rank 11 on gpu-00011 is slow")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.goto(f"{job.url}/job/{JOB}")
        slow = page.locator(".cell.straggler")
        expect(slow).to_contain_text("11")
        cell = Image.open(io.BytesIO(slow.screenshot())).convert("L")
        middle = cell.width // 2
        low, high = cell.crop((middle - 5, 6, middle + 5, 16)).getextrema()
        assert high - low > 100, "the number of the slow rank cannot be read"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert said == []


def test_agents_say_who_is_slow_and_in_which_job(browser: Browser, job: PageFleet) -> None:
    """The agent of the slow node has not noticed it, and pushes no job."""
    with tab(browser) as (page, _):
        page.goto(f"{job.url}/agents?filter=gpu-00011")
        row = page.locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row.locator(".badge")).to_have_text("slow")
        expect(row.get_by_role("link", name=JOB)).to_be_visible()
        page.goto(f"{job.url}/node/gpu-00011?cluster_id={CLUSTER}")
        expect(page.locator(".facts .badge")).to_have_text("slow")


def test_agents_stay_in_their_place_while_they_push(browser: Browser, job: PageFleet) -> None:
    """The slow one comes first, the others by name, whoever pushed last."""
    with tab(browser) as (page, _):
        page.goto(f"{job.url}/agents")
        expect(page.locator("h1")).to_contain_text("48 agents")
        names = page.locator("tbody th").all_inner_texts()
    others = [name for name in job.names if name != "gpu-00011"]
    assert names == ["gpu-00011", *others]


def test_nobody_is_said_to_be_fast_before_the_ranks_are_judged(browser: Browser) -> None:
    with PageFleet(nodes=8, ranks=8, past_s=2) as fleet, tab(browser) as (page, _):
        page.goto(fleet.url)
        row = page.locator(f"tr:has-text('{JOB}')")
        expect(row).to_contain_text("not known yet")
        expect(row).not_to_contain_text("nobody")


def test_a_copied_command_asks_this_fleet(browser: Browser, job: PageFleet) -> None:
    verdict = '{ episode: "5f0c", next: "look at the host" }'
    with tab(browser) as (page, _):
        page.goto(job.url)
        copied = page.evaluate(f"import('/static/format.mjs').then((m) => m.commandOf({verdict}))")
    assert copied == f"ingero replay 5f0c --fleet {job.url}"


def test_a_job_shows_its_ranks_steps_and_the_slow_one(browser: Browser, job: PageFleet) -> None:
    with tab(browser) as (page, _):
        page.goto(f"{job.url}/job/{JOB}")
        expect(page.locator(".cell")).to_have_count(16)
        expect(page.locator(".cell.straggler")).to_contain_text("11")
        expect(page.get_by_role("img", name=re.compile("Own time of 16 ranks"))).to_be_visible()
        last = "Math.max(...ingero.live.steps.columns.keys())"
        before = page.evaluate(last)
        until(lambda: page.evaluate(last) > before, "the picture of steps stands still")


def test_a_node_is_shown_beside_its_median_peer(browser: Browser, job: PageFleet) -> None:
    with tab(browser) as (page, _):
        page.goto(f"{job.url}/node/{job.names[11]}")
        first = page.locator("h2:has-text('median peer') + div tbody tr").first
        expect(first).to_contain_text("own time per step")
        expect(first.locator(".bigger")).to_have_text(re.compile(r"^\+[\d.]+%$"))


def test_an_episode_says_why_nobody_else_was_blamed_and_is_saved(
    browser: Browser, job: PageFleet, tmp_path: Path
) -> None:
    with tab(browser) as (page, said):
        page.goto(f"{job.url}/episode/{episode_of(job)}")
        expect(page.get_by_text("15 peers were compared")).to_be_visible()
        expect(page.get_by_text("below its limit: as fast as its peers").first).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("button", name="save as one HTML file").click()
        download.value.save_as(tmp_path / "episode.html")
        saved = (tmp_path / "episode.html").read_text()
        page.goto((tmp_path / "episode.html").as_uri())
        expect(page.locator("h1")).to_contain_text("Rank 11 on gpu-00011 is slow")
        assert "src=" not in saved
        assert "href=" not in saved
        assert said == []


# What Perfetto's page does: it answers PING once it is ready, and then takes a trace.
PERFETTO_PAGE = """<!doctype html><title>Perfetto</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else window.taken = { title: event.data.perfetto.title, from: event.origin,
    text: new TextDecoder().decode(event.data.perfetto.buffer) };
});
</script>"""


def test_an_episode_opens_in_perfetto(browser: Browser, job: PageFleet) -> None:
    """The trace is handed over in the browser; Perfetto is opened without a token in its URL."""
    with tab(browser) as (page, said):
        page.context.route(
            "https://ui.perfetto.dev/**",
            lambda route: route.fulfill(body=PERFETTO_PAGE, content_type="text/html"),
        )
        page.goto(f"{job.url}/episode/{episode_of(job)}")
        with page.expect_popup() as opened:
            page.get_by_role("button", name="open in Perfetto").click()
        perfetto = opened.value
        perfetto.wait_for_function("window.taken")
        taken = perfetto.evaluate("taken")
        assert (taken["from"], perfetto.url) == (job.url, "https://ui.perfetto.dev/")
        assert taken["title"] == f"Ingero episode {episode_of(job)}"
        ranks = {e["tid"] for e in json.loads(taken["text"])["traceEvents"] if e["ph"] == "X"}
        assert ranks == set(range(16))
        assert said == []


def test_an_episode_says_where_its_alert_went(browser: Browser, job: PageFleet) -> None:
    with tab(browser) as (page, _):
        page.goto(f"{job.url}/episode/{episode_of(job)}")
        row = page.locator("h2:has-text('Where the alert went') + div tbody tr")
        expect(row).to_contain_text("webhook/pager")
        expect(row).to_contain_text("waiting")


def test_the_keyboard_opens_a_node_from_the_map(browser: Browser, job: PageFleet) -> None:
    with tab(browser) as (page, _):
        page.goto(job.url)
        page.get_by_role("application").focus()
        for key in ("ArrowRight", "ArrowRight", "Enter"):
            page.keyboard.press(key)
        expect(page.locator("h1")).to_contain_text("gpu-00001 is not slow")
        page.go_back()
        expect(page.locator("h1")).to_contain_text("Rank 11 on gpu-00011")


def test_a_silence_is_set_and_lifted_from_the_page(browser: Browser) -> None:
    with PageFleet(nodes=12) as fleet, tab(browser) as (page, said):
        fleet.slow_nodes.add(fleet.names[3])
        fleet.call(lambda: fleet.push(3))
        page.goto(f"{fleet.url}/node/{fleet.names[3]}")
        page.get_by_role("button", name="silence").click()
        page.get_by_label("Why").fill("swapped <b>soon</b>")
        page.get_by_role("button", name="Silence", exact=True).click()
        page.get_by_role("link", name="Now").click()
        expect(page.locator("h1")).to_have_text("Nobody else is slow; silenced: gpu-00003.")
        expect(page.get_by_text("swapped <b>soon</b>")).to_be_visible()
        page.get_by_role("button", name="lift").click()
        expect(page.locator("h1")).to_contain_text("gpu-00003 is slow")
        assert said == []


def test_markup_in_names_stays_text(browser: Browser) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    with PageFleet(nodes=12, prefix=hostile) as fleet, tab(browser) as (page, said):
        name = fleet.names[0]
        fleet.slow_nodes.add(name)
        fleet.call(lambda: fleet.push(0))
        page.goto(fleet.url)
        expect(page.locator("h1")).to_contain_text(name)
        assert page.locator("#app img").count() == 0
        page.goto(f"{fleet.url}/agents")
        page.get_by_role("link", name=name).click()
        expect(page.locator("h1")).to_have_text(f"{name} is slow.")
        assert said == []


def test_without_a_token_the_page_asks_for_one(browser: Browser, tmp_path: Path) -> None:
    """The token is sent as a header and kept for the tab, never part of a URL."""
    own = {"token_file": str(private(tmp_path / "token", TOKEN))}
    with (
        PageFleet(nodes=12, extensions={"ingero_threshold": own}) as fleet,
        tab(browser) as (page, _),
    ):
        page.goto(fleet.url)
        field = page.get_by_label("token")
        expect(field).to_be_visible()
        assert problems_of(page) == []
        field.fill("a-wrong-token-0123456789")
        page.keyboard.press("Enter")
        expect(field).to_be_visible()
        field.fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Nobody is slow.")
        assert TOKEN not in page.url
        page.reload()
        expect(page.locator("h1")).to_have_text("Nobody is slow.")
        page.get_by_role("button", name="forget token").click()
        expect(field).to_be_visible()


def test_the_page_says_when_fleet_is_away_and_recovers_by_itself(browser: Browser) -> None:
    with PageFleet(nodes=12) as fleet, tab(browser) as (page, _):
        page.goto(fleet.url)
        expect(page.locator("h1")).to_have_text("Nobody is slow.")
        address = fleet.url.removeprefix("http://")
        fleet.stop()
        expect(page.locator(".banner")).to_contain_text("Nothing was heard from Fleet")
        fleet.start(address)
        expect(page.locator(".banner")).to_have_count(0)
        expect(page.locator("h1")).to_have_text("Nobody is slow.")
