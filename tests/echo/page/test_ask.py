"""Echo's page and the addresses of questions: as a page, as JSON and as CSV."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from tests.support.browser import chromium, tab
from tests.support.echo_samples import metrics_body
from tests.support.echo_service import TOKEN, RunningEcho
from tests.support.waiting import until

from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.contract.verdict_otlp import encode_verdict_logs
from ingero.echo.page.asked import to_csv

SQL = "SELECT node_id, count(*) AS points FROM events GROUP BY node_id ORDER BY node_id"
HTML = {"Accept": "text/html,*/*"}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEcho]:
    with RunningEcho(tmp_path_factory.mktemp("echo")) as running:
        for node in ("n1", "=n2"):
            assert running.send(metrics_body(node, points=3)).status == 200
        yield running


def test_the_page_needs_no_token_and_its_data_does(echo: RunningEcho) -> None:
    for path in ("/", "/ask", "/ask/run_analysis?sql=x", "/static/echo.mjs"):
        reply = echo.get(path, None, HTML)
        assert reply.status == 200, path
        assert "default-src 'none'" in reply.headers["content-security-policy"]
    asked = f"/ask/run_analysis?sql={quote(SQL)}&format=json"
    assert echo.get(asked, None, HTML).status == 401
    assert echo.get("/", None).status == 401, "without a browser, `/` is MCP"
    assert echo.get("/api/v2/openapi.json", None).status == 401


def test_an_address_answers_as_json_and_as_csv(echo: RunningEcho) -> None:
    asked = f"/ask/run_analysis?limit=10&sql={quote(SQL)}&format="
    found = echo.get(asked + "json").json["data"]
    assert found["columns"] == ["node_id", "points"]
    assert sorted(found["rows"]) == [["=n2", 3], ["n1", 3]]
    csv = echo.get(asked + "csv")
    assert csv.headers["content-type"].startswith("text/csv")
    lines = csv.body.decode().splitlines()
    assert lines[0] == "node_id,points"
    assert set(lines[1:]) == {"'=n2,3", "n1,3"}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/ask/run_analysis?sql=SELECT%201&format=xml", 400, "format must be json or csv"),
        ("/ask/run_analysis?sql=SELECT%201&limit=many&format=json", 400, "limit"),
        ("/ask/nothing?format=json", 404, "nothing"),
        ("/ask/run_analysis?sql=DROP%20TABLE%20x&format=csv", 400, "SELECT"),
    ],
)
def test_a_wrong_address_is_refused_with_a_sentence(
    echo: RunningEcho, path: str, status: int, said: str
) -> None:
    reply = echo.get(path)
    assert (reply.status, said in reply.json["error"]["message"]) == (status, True), reply.body


def test_an_answer_without_rows_is_one_line() -> None:
    assert to_csv({"nodes": 3, "names": ["a", "b"]}) == 'nodes,names\n3,"[""a"",""b""]"\n'
    assert to_csv({"of": 2, "found": [{"a": 1}, {"b": "x"}]}) == "a,b\n1,\n,x\n"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"), ("@SUM(A1)", "'@SUM(A1)"), ("|calc", "'|calc"), ("%x", "'%x"),
        ("-1+cmd", "'-1+cmd"), ("-1.5", "-1.5"), ("\n=1", "'\\x0a=1"), ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"), ("a=1", "a=1"),
    ],
)  # fmt: skip
def test_a_cell_is_neither_a_formula_nor_an_escape_sequence(text: str, cell: str) -> None:
    """Columns may be named by whoever asks, cells hold what anybody pushed."""
    assert to_csv({"columns": [text], "rows": [[text]]}) == f"{cell}\n{cell}\n"


def test_a_question_is_asked_in_a_browser(echo: RunningEcho, tmp_path: Path) -> None:
    with chromium() as browser:
        for scheme in ("light", "dark"):
            with tab(browser, color_scheme=scheme) as (page, said):
                page.goto(echo.url("/"))
                page.get_by_label("token").fill(TOKEN)
                page.keyboard.press("Enter")
                page.get_by_role("link", name="Run one read-only SELECT").click()
                said.clear()  # the 401 that led to the token field
                page.locator("textarea").fill(SQL)
                page.get_by_role("button", name="Ask").click()
                expect(page.get_by_role("cell", name="=n2")).to_be_visible()
                assert "sql=SELECT" in page.url
                assert TOKEN not in page.url
                found = Axe().run(page).response["violations"]
                assert [each["id"] for each in found] == []
                page.reload()
                expect(page.get_by_role("cell", name="=n2")).to_be_visible()
                expect(page.locator("textarea")).to_have_value(SQL)
                with page.expect_download() as download:
                    page.get_by_role("button", name="CSV").click()
                download.value.save_as(tmp_path / "rows.csv")
                assert (tmp_path / "rows.csv").read_text().startswith("node_id,points\n")
                assert said == []


def test_who_sees_several_clusters_chooses_one(echo: RunningEcho) -> None:
    suspect = Verdict(episode="e0", state=VerdictState.SUSPECT, node="n3", since=time.time())
    body = encode_protobuf(encode_verdict_logs([("c2", suspect)], time.time_ns()))
    assert echo.send(body, "logs").status == 200
    asked = "/ask/summary?format=json"
    until(lambda: echo.get(asked).status == 400, "the second cluster is not known")
    refused = echo.get(asked).json["error"]
    assert (refused["code"], refused["choices"]) == ("cluster_required", ["c1", "c2"])
    with chromium() as browser, tab(browser) as (page, _):
        page.goto(echo.url("/ask/summary"))
        page.get_by_label("token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_role("link", name="c2", exact=True).click()
        expect(page.get_by_role("region", name="Answer")).to_contain_text("c2")
        expect(page.get_by_label("cluster id")).to_have_value("c2")
        assert page.url.endswith("?cluster_id=c2")


def test_wide_answers_scroll_by_themselves_and_unknown_questions_are_named(
    echo: RunningEcho,
) -> None:
    long = "A" * 40
    columns = ", ".join(f"'{long}' AS column_{number}" for number in range(9))
    wide = quote(f"SELECT {columns}")
    with chromium() as browser, tab(browser, viewport={"width": 390, "height": 800}) as (page, _):
        page.goto(echo.url(f"/ask/run_analysis?sql={wide}"))
        page.get_by_label("token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("cell").nth(8)).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.goto(echo.url("/ask/sumary"))
        expect(page.get_by_role("alert")).to_contain_text("no question “sumary”")


def test_the_first_screen_is_the_history_of_episodes(echo: RunningEcho) -> None:
    """An episode leads to what was decided about it, which has an address of its own."""
    slow = Verdict(
        episode="e'1", state=VerdictState.STRAGGLER, node="n7", rank=7, job="<b>llm</b>",
        since=time.time() - 60, cause_class=CauseClass.COMPUTE, loss=0.1, usd_per_hour=12.5,
        evidence="own time +20%",
    )  # fmt: skip
    over = msgspec.structs.replace(slow, state=VerdictState.RESOLVED, evidence="as its peers")
    only = msgspec.structs.replace(slow, episode="e2", node="n8", state=VerdictState.SUSPECT)
    for each in (slow, over, only):
        body = encode_protobuf(encode_verdict_logs([("c", each)], time.time_ns()))
        assert echo.send(body, "logs").status == 200
    with (
        chromium() as browser,
        tab(browser, viewport={"width": 390, "height": 800}) as (page, said),
    ):
        page.goto(echo.url("/"))
        page.get_by_label("token").fill(TOKEN)
        page.keyboard.press("Enter")
        row = page.locator("h2:has-text('Episodes') + div tbody tr")
        expect(row).to_have_count(1)  # a suspicion that was not confirmed is none
        for text in ("rank 7 on n7", "job <b>llm</b>, cluster c", "resolved", "10.0%", "$12.50/h"):
            expect(row).to_contain_text(text)
        said.clear()  # the 401 that led to the token field
        assert [each["id"] for each in Axe().run(page).response["violations"]] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        row.get_by_role("link").click()
        expect(page.locator("section tbody tr")).to_have_count(2)
        expect(page.locator("section tbody")).to_contain_text("own time +20%")
        assert "episode+%3D+%27e%27%271%27" in page.url
        page.go_back()
        expect(row).to_have_count(1)
        assert said == []
