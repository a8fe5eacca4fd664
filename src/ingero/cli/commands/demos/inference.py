"""`ingero demo --scenario inference`: a hanging engine and a slow replica, without a GPU."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ingero.cli.show.table import coloured, print_json, printable
from ingero.contract.verdict import Verdict, VerdictState
from ingero.errors import IngeroError

if TYPE_CHECKING:
    from ingero.sim.inference.cluster import ServingNode

READY_S = 60.0
NAMED_S = 90.0
CALM_S = 8.0  # of equal steps, before one replica becomes slow
Say = Callable[[str], None]


@dataclass
class InferenceRun:
    """The course of the demo, also for `--json`."""

    scenario: str = "inference"
    simulated: bool = True
    replicas: int = 3
    stalled_after_s: float | None = None
    waits: str = ""
    health: str = ""
    ready: bool | None = None
    resumed_after_s: float | None = None
    slow_after_s: float | None = None
    wrongly_named: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        times = (self.stalled_after_s, self.resumed_after_s, self.slow_after_s)
        return None not in times and not self.wrongly_named and self.ready is False


def play_inference(as_json: bool, say: Say) -> int:
    """Play the demo; the exit status is 0 only if the right replicas were named and no other."""
    from ingero.sim.inference.cluster import ServingNode

    run = InferenceRun()
    say("starting Fleet, the agent and 3 replicas of a simulated engine on loopback")
    say("(no model: its metrics pages, processes and steps are real) …")
    with ServingNode(run.replicas) as node:
        try:
            node.wait_for(lambda: node.known_replicas() == run.replicas, READY_S)
            say("         the agent found all 3 by their processes; each serves 8 requests\n")
            _hang(node, run, say)
            _slow(node, run, say)
        except IngeroError as error:
            say(f"the demo could not be finished: {error}")
    if as_json:
        print_json(asdict(run) | {"ok": run.ok})
    else:
        _summary(run)
    return 0 if run.ok else 1


def _hang(node: "ServingNode", run: InferenceRun, say: Say) -> None:
    from ingero.agent.engines.ready import probe_engine

    engine = node.engines[1]
    engine.hang()
    began = time.monotonic()
    say(f"         the worker of the replica on port {engine.port} hangs (SIGSTOP)")
    node.wait_for(lambda: _named(node, engine.port, run), NAMED_S)
    run.stalled_after_s = round(time.monotonic() - began, 1)
    verdict = _named(node, engine.port, run)
    assert verdict is not None
    run.waits, run.health = verdict.cause, verdict.evidence
    say(f"T+{run.stalled_after_s:4.1f} s  {coloured('stalled', '31;1')}: {verdict.engine}")
    say(f"         {printable(verdict.cause)}")
    say(f"         {printable(verdict.evidence)}")
    probe = probe_engine(engine.port, 1.0)
    run.ready = probe.is_ready
    say(f"         ingero ready engine --port {engine.port}: not ready, {printable(probe.why)}\n")
    engine.resume()
    began = time.monotonic()
    node.wait_for(lambda: _named(node, engine.port, run) is None, NAMED_S)
    run.resumed_after_s = round(time.monotonic() - began, 1)
    say(f"T+{run.resumed_after_s:4.1f} s  resolved: the worker goes on\n")


def _slow(node: "ServingNode", run: InferenceRun, say: Say) -> None:
    from ingero.sim.inference.cluster import BUSY

    time.sleep(CALM_S)
    engine = node.engines[2]
    engine.set_load(msgspec.structs.replace(BUSY, step_s=2 * BUSY.step_s))
    began = time.monotonic()
    say(f"         steps of the replica on port {engine.port} now take twice as long")
    node.wait_for(lambda: _named(node, engine.port, run), NAMED_S)
    run.slow_after_s = round(time.monotonic() - began, 1)
    verdict = _named(node, engine.port, run)
    assert verdict is not None
    say(f"T+{run.slow_after_s:4.1f} s  {coloured('slow', '31;1')}: {verdict.engine}")
    say(f"         {printable(verdict.evidence)}")


def _named(node: "ServingNode", port: int, run: InferenceRun) -> Verdict | None:
    """Return the open verdict about a port; verdicts about others are noted as wrong."""
    found = None
    for verdict in node.verdicts():
        if verdict.state is VerdictState.RESOLVED:
            continue
        if f"port {port}," in verdict.engine:
            found = verdict
        elif verdict.engine not in run.wrongly_named:
            run.wrongly_named.append(verdict.engine)
    return found


def _summary(run: InferenceRun) -> None:
    if run.ok:
        hung, slow = run.stalled_after_s, run.slow_after_s
        text = f"The replica that hung was named after {hung} s, the slow one after {slow} s"
        print(coloured(f"\n{text}, and nobody else.", "32"))
    else:
        wrong = ", ".join(run.wrongly_named)
        why = f"wrongly named: {wrong}" if wrong else "a replica was not named in time"
        print(coloured(f"\nThe demo failed: {why}.", "31;1"))
    print("\nNext:\n  ingero ready engine --port N        a readiness probe that notices a hang\n"
          "  docs/how-to/inference.md            the same on your own nodes")  # fmt: skip
