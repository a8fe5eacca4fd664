"""`ingero ready`: probes for orchestrators that say by their exit status whether to send work."""

import click

from ingero.cli.params import AS_JSON, Duration
from ingero.cli.show.table import print_json, printable

READY, NOT_READY = 0, 1


@click.group()
def command() -> None:
    """Say by the exit status whether something on this node can take work.

    The exit status is 0 if it is ready, 1 if it is not, and 2 for wrong usage.

    \b
    Examples:
      ingero ready engine --port 8000
      ingero ready engine --port 30000 --within 5s
    """


@command.command("engine")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    required=True,
    help="Port on which the inference engine serves its metrics page.",
)
@click.option(
    "--within",
    type=Duration(),
    default="10s",
    show_default=True,
    help="Time in which an engine with requests must make a step.",
)
@AS_JSON
def engine(port: int, within: float, as_json: bool) -> int:
    """Say whether an inference engine serves the requests that it has.

    An engine that hangs keeps answering its health page. This probe reads the metrics page on a
    port of this host instead: the engine is ready if it is idle, or if it makes a step in time. The
    probe needs no agent and keeps nothing between two runs. Use it as an exec probe with a timeout
    longer than --within.

    vLLM, SGLang, TensorRT-LLM, Triton and TGI are understood. The exit status is 0 if the engine
    is ready, 1 if it is not, and 2 for wrong usage.

    \b
    Examples:
      ingero ready engine --port 8000
      ingero ready engine --port 30000 --within 5s --json
    """
    from ingero.agent.engines.ready import probe_engine

    found = probe_engine(port, within)
    if as_json:
        print_json({"ready": found.is_ready, "why": found.why})
    else:
        print(f"{'ready' if found.is_ready else 'not ready'}: {printable(found.why)}")
    return READY if found.is_ready else NOT_READY
