"""`ingero alert test`: send one alert to a target of Fleet's configuration, and end it again."""

import asyncio
import time
from pathlib import Path

import click

from ingero.cli.params import AS_JSON
from ingero.cli.show.table import print_json, printable
from ingero.config.fleet import FleetConfig
from ingero.config.fleet_alerts import AlertsConfig
from ingero.config.loader import load_file
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.alerts.alert import Alert, Message, MessageKind, alert_of
from ingero.errors import ConfigError, Unavailable

_PARTS = {MessageKind.BEGIN: "beginning", MessageKind.END: "end"}


@click.command()
@click.argument("action", type=click.Choice(["test"]))
@click.argument("target")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    default=Path("fleet-config.yaml"),
    show_default=True,
    help="Configuration file of Fleet, with the section `alerts`.",
)
@AS_JSON
def command(action: str, target: str, path: Path, as_json: bool) -> int:
    """Send a test alert to a target, and its end.

    TARGET is the name that it has under `alerts.targets`. The alert is about the node `ingero-test`
    of the cluster `test`. The exit status is 1 when the target did not accept it, with the reason
    in the message.

    \b
    Examples:
      ingero alert test alertmanager --config fleet-config.yaml
      ingero alert test pagerduty/night --config /etc/ingero/fleet.yaml
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist; name Fleet's configuration with --config")
    alerts = load_file(FleetConfig, path).alerts
    if target not in alerts.targets:
        known = ", ".join(sorted(alerts.targets)) or "none"
        raise ConfigError(f"{path} has no target {target!r} under alerts.targets; known: {known}")
    alert = _test_alert(time.time())
    asyncio.run(_send(alerts, target, alert))
    if as_json:
        print_json({"target": target, "episode": alert.verdict.episode, "delivered": True})
    else:
        print(f"{printable(target)} accepted the beginning and the end of a test alert")
    return 0


def _test_alert(now_s: float) -> Alert:
    verdict = Verdict(
        episode=f"test-{now_s:.0f}",
        state=VerdictState.STRAGGLER,
        node="ingero-test",
        rank=0,
        job="ingero-test",
        cause_class=CauseClass.UNKNOWN,
        since=now_s,
        evidence="This is a test of `ingero alert test`; nothing is slow.",
        next_step="nothing is to be done",
    )
    alert = alert_of("test", verdict)
    assert alert is not None
    return alert


async def _send(config: AlertsConfig, name: str, alert: Alert) -> None:
    from ingero.fleet.alerts.service import build_target

    target = build_target(name, config.targets[name], config.public_url)
    try:
        for kind in (MessageKind.BEGIN, MessageKind.END):
            now_s = time.time()
            ended = now_s if kind is MessageKind.END else None
            told = Alert(name=alert.name, cluster=alert.cluster, verdict=alert.verdict, ended=ended)
            delivery = await target.send(Message(kind=kind, alert=told), now_s)
            if delivery.why:
                raise Unavailable(
                    f"{name} did not accept the {_PARTS[kind]} of a test: {delivery.why}"
                )
    finally:
        await target.close()
