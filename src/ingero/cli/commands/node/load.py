"""`ingero load`: give a node something to measure."""

import signal
import sys
import threading
import time

import click

from ingero.cli.params import AS_JSON, Duration
from ingero.cli.show.table import print_json
from ingero.errors import Unavailable


@click.group("load")
def command() -> None:
    """Put a steady load on this node, to see tracing and health at work.

    \b
    Examples:
      ingero load matmul
      ingero load matmul --stand-in --duration 2m
    """


@command.command("matmul")
@click.option(
    "--size",
    default=4096,
    show_default=True,
    type=click.IntRange(16, 65536),
    help="Rows and columns of the matrices.",
)
@click.option("--duration", type=Duration(), help="How long to run; until Ctrl-C if omitted.")
@click.option(
    "--stand-in",
    is_flag=True,
    help="Call a stand-in for the CUDA runtime although there is a GPU.",
)
@AS_JSON
def matmul(size: int, duration: float | None, stand_in: bool, as_json: bool) -> int:
    """Multiply two matrices of 32-bit numbers again and again.

    With PyTorch and a GPU this is real work. Without them, a stand-in for the CUDA runtime is
    called, which `ingero trace` records like the real one: three nodes under this load reach their
    quorum within two minutes (configs/fleet-three-nodes.yaml).

    \b
    Examples:
      ingero load matmul
      ingero load matmul --size 8192 --duration 10m
      ingero load matmul --stand-in
    """
    from ingero.agent.load.matmul import PRODUCTS_PER_STEP, gpu_matmul, stand_in_matmul

    try:
        if stand_in:
            raise Unavailable("--stand-in was given")
        device, step = gpu_matmul(size)
    except Unavailable as why:
        device, step = stand_in_matmul(size)
        device = f"{device}, because {why}"
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    click.echo(f"multiplying {size} x {size} on {device}; Ctrl-C stops", err=True)
    began_s, steps = time.monotonic(), 0
    while not stop.is_set() and (duration is None or time.monotonic() - began_s < duration):
        step()
        steps += 1
    took_s, products = time.monotonic() - began_s, steps * PRODUCTS_PER_STEP
    if as_json:
        print_json({"device": device, "products": products, "seconds": round(took_s, 3)})
    else:
        sys.stdout.write(f"{products} products in {took_s:.1f} s\n")
    return 0
