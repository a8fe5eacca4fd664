"""What each target gets: Alertmanager itself, and sinks that stand for the others."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.support.alert_sink import AlertSink, alert_sink
from tests.support.alerts import NOW_S, SLOW, changed
from tests.support.episode_world import EpisodeWorld
from tests.support.peers import debian_command, free_port
from tests.support.pushes import NEVER_S, loopback_config, running
from tests.support.tokens import private
from tests.support.waiting import until_async

from ingero.cli.commands.services.alert import command
from ingero.contract.exposition import render
from ingero.contract.verdict import Verdict
from ingero.core.alerts.alert import alert_of
from ingero.core.alerts.fingerprint import fingerprint_of
from ingero.errors import ConfigError
from ingero.fleet.alerts.chat import as_text
from ingero.fleet.alerts.metrics import alert_families
from ingero.fleet.alerts.service import AlertService

URL = "https://fleet.example:8080"


def service(state_dir: Path | None = None, **targets: Any) -> AlertService:
    config = loopback_config(alerts={"public_url": URL, "targets": targets})
    return AlertService(config.alerts, state_dir, NOW_S)


async def told(alerts: AlertService, *seconds: tuple[float, list[tuple[str, Verdict]]]) -> None:
    """Step and deliver at each of these seconds."""
    for second, verdicts in seconds:
        alerts.step(verdicts, NOW_S + second)
        await alerts.deliver(NOW_S + second)


async def test_pagerduty_triggers_acknowledges_and_resolves_by_the_episode(tmp_path: Path) -> None:
    key = private(tmp_path / "key", "r0uting-key")
    async with alert_sink() as sink:
        alerts = service(pagerduty={"url": f"{sink.url}/v2/enqueue", "routing_key_file": str(key)})
        quiet = changed(silenced="until tomorrow")
        await told(alerts, (0, [("c", SLOW)]), (1, [("c", quiet)]), (2, []), (3, []))
        await alerts.stop()
        bodies = [body for _, _, body in sink.requests]
        assert [(b["event_action"], b["dedup_key"], b["routing_key"]) for b in bodies] == [
            (action, "e1", "r0uting-key") for action in ("trigger", "acknowledge", "resolve")
        ]
        assert bodies[0]["payload"]["summary"].startswith("n5 rank 5 job j holds the others up")
        assert bodies[0]["payload"]["custom_details"]["price"] == "12.50 USD per hour"
        assert bodies[0]["links"] == [{"href": f"{URL}/episode/e1", "text": "the episode"}]


async def test_a_webhook_gets_alertmanagers_body_and_a_signature(tmp_path: Path) -> None:
    secret = private(tmp_path / "secret", "0123456789abcdef")
    async with alert_sink() as sink:
        alerts = service(webhook={"url": sink.url, "secret_file": str(secret)})
        await told(alerts, (0, [("c", SLOW)]), (5, []))
        await alerts.stop()
        first, last = (body for _, _, body in sink.requests)
        assert (first["version"], first["status"], last["status"]) == ("4", "firing", "resolved")
        [one] = last["alerts"]
        assert (one["endsAt"], one["generatorURL"]) == (
            "2023-11-14T22:13:25.000Z", f"{URL}/episode/e1",
        )  # fmt: skip
        for body, headers in zip(sink.bodies, sink.headers, strict=True):
            at, _, signed = headers["X-Ingero-Signature"].partition(",")
            key, signing = b"0123456789abcdef", at.removeprefix("t=").encode() + b"." + body
            assert signed == "v1=" + hmac.new(key, signing, hashlib.sha256).hexdigest()


async def test_kubernetes_gets_an_event_and_where_asked_a_condition(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("account-token")  # readable by others, as the kubelet writes it
    async with alert_sink() as sink:
        own = {"url": sink.url, "token_file": str(token), "ca_file": None}
        alerts = service(
            **{"kubernetes": own, "kubernetes/condition": {**own, "node_condition": True}}
        )
        two = [("c", SLOW), ("c", changed(episode="e2", rank=6))]
        await told(alerts, (0, two), (1, two[1:]), (2, []))
        await alerts.stop()
        events = [body for method, _, body in sink.requests if method == "POST"]
        assert len(events) == 8, "two episodes, two ends, two targets"
        assert events[0]["involvedObject"] == {"kind": "Node", "name": "n5", "uid": "n5"}
        assert {e["metadata"]["name"] for e in events} == {
            f"ingero-{e}-{kind}" for e in ("e1", "e2") for kind in ("begin", "end")
        }
        patches = [(path, body) for method, path, body in sink.requests if method == "PATCH"]
        assert {path for path, _ in patches} == {
            "/api/v1/nodes/n5/status?fieldManager=ingero-fleet&force=true"
        }
        conditions = [body["status"]["conditions"][0] for _, body in patches]
        assert [(c["type"], c["status"]) for c in conditions] == [
            ("GpuStraggler", "True"), ("GpuStraggler", "True"), ("GpuStraggler", "False")
        ], "the condition ends with the last slow rank"  # fmt: skip
        assert sink.headers[0]["Authorization"] == "Bearer account-token"


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # of apprise
async def test_apprise_gets_both_messages(tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    async with alert_sink() as sink:
        urls = private(tmp_path / "urls", f"json{sink.url.removeprefix('http')}/chat\n")
        alerts = service(apprise={"urls_file": str(urls)})
        await told(alerts, (0, [("c", SLOW)]), (1, []))
        await alerts.stop()
        assert [(body["type"], body["title"]) for _, _, body in sink.requests] == [
            ("warning", "n5 rank 5 job j holds the others up (host, the job loses 9.1%)"),
            ("success", "n5 rank 5 job j is over: back among its peers"),
        ]
        assert "next: raise the quota" in sink.requests[0][2]["message"]


@pytest.mark.parametrize(
    "name",
    [
        "<!channel> see <https://evil.example|the page>",
        "@everyone",
        "<@U123>",
        "[the episode](https://evil.example)",
        "**n5** `rm -rf` ||spoiler||",
        "<img src=x onerror=alert(1)>",
        "n5\nlink: https://evil.example",
        "n5\x1b]8;;https://evil.example\x07 \u202e",
        "n5 https:\u200b//evil.example \x00",
        "n5 WWW.evil.example/login www.evil.example",
        "n5 &lt;!channel&gt; ~~struck~~",
    ],
)
def test_names_of_nodes_are_no_markup_of_a_chat(name: str) -> None:
    """Who may push chooses them, and a message reaches everybody on call."""
    alert = alert_of("c", changed(node=name, job=name, cause=name, evidence=name))
    assert alert is not None
    title, body = as_text(alert.annotations(URL))
    texts = [title, *(line for line in body.splitlines() if not line.startswith("link: "))]
    assert not set("<>@[]`*|~&") & set("".join(texts))
    assert all(text.isprintable() and "www." not in text.lower() for text in texts)
    assert "evil.example" not in body or "://evil.example" not in body
    assert [line for line in body.splitlines() if line.startswith("link: ")] == [
        f"link: {URL}/episode/e1"
    ]
    assert "n5" not in name or "n5" in title, "it can still be read"


async def test_a_target_away_for_ten_minutes_gets_both_once_over_a_restart(tmp_path: Path) -> None:
    """A journal, at least once, each message once; what was delivered is not sent again."""
    async with alert_sink() as sink:
        sink.status = 503
        target = {"webhook": {"url": sink.url}}
        first = service(tmp_path, **target)
        await told(
            first, *((float(s), [("c", SLOW)] if s < 300 else []) for s in range(0, 400, 10))
        )
        page = render(alert_families(first)).decode()
        assert 'ingero_fleet_alert_waiting{target="webhook"} 2' in page
        assert 'ingero_fleet_alert_target_up{target="webhook"} 0' in page
        await first.stop()
        second = service(tmp_path, **target)
        sink.status = 200
        await told(second, (600, []), (661, []), (722, []))
        await second.stop()
        assert [body["status"] for _, _, body in sink.requests] == ["firing", "resolved"]
        third = service(tmp_path, **target)
        await told(third, (800, []))
        await third.stop()
        assert len(sink.requests) == 2
        assert (tmp_path / "alerts.json").stat().st_mode & 0o777 == 0o600


async def test_a_wrong_secret_is_tried_again_and_a_refused_message_is_not(tmp_path: Path) -> None:
    async with alert_sink() as sink:
        secret = tmp_path / "secret"
        alerts = service(webhook={"url": sink.url, "secret_file": str(secret)})
        await told(alerts, (0, [("c", SLOW)]))
        private(secret, "now-it-is-there")
        sink.status = 401
        await told(alerts, (2, [("c", SLOW)]))
        sink.status = 400
        await told(alerts, (10, [("c", SLOW)]))
        assert alerts.queues["webhook"].counters.dropped_refused == 1
        assert alerts.queues["webhook"].counters.failed == 3
        await alerts.stop()


async def test_a_slow_rank_of_a_running_fleet_is_told_once_and_its_end_once() -> None:
    async with alert_sink() as sink:
        settings = {"targets": {"webhook": {"url": sink.url}}, "public_url": URL}
        async with running(tick_s=NEVER_S, alerts=settings) as fleet:
            world = EpisodeWorld(fleet, start_s=time.time() - 280)
            for _ in range(28):
                world.run(10)
                assert fleet.judgement.alerts is not None
                await fleet.judgement.alerts.deliver(world.at_s)
        first, last = (body for _, _, body in sink.requests)
        assert first["commonLabels"]["node_id"] == last["commonLabels"]["node_id"] == "n5"
        assert (first["status"], last["status"]) == ("firing", "resolved")


def test_a_damaged_journal_is_moved_away(tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_text("{")
    assert service(tmp_path).decisions.open == {}
    assert (tmp_path / "alerts.damaged").exists()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.asynccontextmanager
async def alertmanager(tmp_path: Path, sink: AlertSink) -> AsyncIterator[str]:
    """Run the real Alertmanager, which tells a sink at once."""
    program, port = debian_command("prometheus-alertmanager"), free_port()
    config = {
        "route": {"receiver": "sink", "group_by": ["..."], "group_wait": "0s",
                  "group_interval": "1s", "repeat_interval": "1h"},
        "receivers": [{"name": "sink", "webhook_configs": [{"url": sink.url}]}],
    }  # fmt: skip
    file = tmp_path / "alertmanager.yml"
    file.write_text(json.dumps(config))
    flags = [f"--config.file={file}", f"--storage.path={tmp_path / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*program, *flags], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        await until_async(lambda: _answers(port))
        yield url
    finally:
        process.terminate()
        process.wait(10)


async def test_a_real_alertmanager_tells_beginning_and_end_once(tmp_path: Path) -> None:
    """Repeats make no second message, and its fingerprint is ours."""
    async with alert_sink() as sink, alertmanager(tmp_path, sink) as url:
        config = loopback_config(
            alerts={"public_url": URL, "targets": {"alertmanager": {"url": url}}}
        )
        start_s = time.time()
        alerts = AlertService(config.alerts, None, start_s)
        slow = msgspec.structs.replace(SLOW, since=start_s)
        alerts.step([("c", slow)], start_s)
        await alerts.deliver(start_s)
        await until_async(lambda: len(sink.requests) == 1)
        for minute in (61, 122, 183):  # repeats, as time goes by for Fleet
            await alerts.deliver(start_s + minute)
        alerts.step([], time.time())
        await alerts.deliver(time.time())
        await until_async(lambda: len(sink.requests) == 2)
        await alerts.stop()
        first, last = (body for _, _, body in sink.requests)
        assert (first["status"], last["status"]) == ("firing", "resolved")
        [one] = last["alerts"]
        alert = alert_of("c", slow)
        assert alert is not None and one["labels"] == alert.labels
        assert one["fingerprint"] == fingerprint_of(alert.labels)
        assert one["annotations"]["link"] == f"{URL}/episode/e1"


async def test_the_command_sends_a_beginning_and_an_end(tmp_path: Path) -> None:
    async with alert_sink() as sink:
        config = tmp_path / "fleet.yaml"
        config.write_text(f"alerts: {{targets: {{webhook/ops: {{url: '{sink.url}'}}}}}}\n")

        async def run(target: str) -> Any:
            arguments = ["test", target, "--config", str(config)]
            return await asyncio.to_thread(
                CliRunner().invoke, command, arguments, standalone_mode=False
            )

        result = await run("webhook/ops")
        assert result.return_value == 0, result.exception
        assert [body["status"] for _, _, body in sink.requests] == ["firing", "resolved"]
        assert "known: webhook/ops" in str((await run("webhook")).exception)
        sink.status = 500
        assert "did not accept the begin" in str((await run("webhook/ops")).exception)


@pytest.mark.parametrize(
    ("target", "settings", "refused"),
    [
        ("webhook", {"url": "http://hooks.example/x", "token_file": "/dev/null"}, True),
        ("webhook", {"url": "http://hooks.example/x"}, False),
        ("webhook", {"url": "https://hooks.example/x", "token_file": "/dev/null"}, False),
        ("webhook", {"url": "http://127.0.0.1:9/x", "token_file": "/dev/null"}, False),
        ("webhook", {"url": "http://127.0.0.1@evil.example/", "token_file": "/dev/null"}, True),
        ("webhook", {"url": "http://127.0.0.1.evil.example/", "token_file": "/dev/null"}, True),
        ("alertmanager", {"url": "http://am:9093", "token_file": "/dev/null"}, True),
        ("pagerduty", {"url": "http://events.example", "routing_key_file": "/dev/null"}, True),
        ("kubernetes", {"url": "http://10.0.0.1"}, True),
        ("webhook", {"url": "http://"}, True),
        ("webhook", {"url": "file:///etc/passwd"}, True),
        ("webhook", {"url": "http://[::1"}, True),
    ],
)
def test_secrets_are_sent_in_plaintext_to_this_machine_only(
    target: str, settings: dict[str, str], refused: bool
) -> None:
    if refused:
        with pytest.raises(ConfigError, match=r"plaintext|names no host|must begin"):
            loopback_config(alerts={"targets": {target: settings}})
    else:
        loopback_config(alerts={"targets": {target: settings}})


@pytest.mark.parametrize("node", ["..", ".", "a/b", "a?x=1", "N5", "", "a%2f", "x" * 254, "a\nb"])
async def test_nodes_that_kubernetes_cannot_have_are_in_no_path(tmp_path: Path, node: str) -> None:
    token = private(tmp_path / "token", "kubernetes-token")
    async with alert_sink() as sink:
        own = {"url": sink.url, "token_file": str(token), "ca_file": None, "node_condition": True}
        alerts = service(kubernetes=own)
        await told(
            alerts, (0, [("c", changed(node=node)), ("c", changed(node="n6", episode="e2"))])
        )
        await alerts.stop()
        assert {path.partition("?")[0] for _, path, _ in sink.requests} == {
            "/api/v1/namespaces/default/events", "/api/v1/nodes/n6/status",
        }  # fmt: skip


async def test_a_message_that_cannot_be_built_does_not_hold_up_the_next_one() -> None:
    async with alert_sink() as sink:
        alerts = service(webhook={"url": sink.url})
        wrong = changed(since=1e300)  # no date
        await told(alerts, (0, [("c", wrong), ("c", changed(episode="e2"))]), (1, []))
        await alerts.stop()
        told_about = [body["groupLabels"]["episode"] for _, _, body in sink.requests]
        assert told_about == ["e2", "e2"]
        assert alerts.queues["webhook"].counters.dropped_refused == 2
