"""Asking many nodes at once: the replies in node order, and how complete they are."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ingero.cli.event_loop import new_event_loop
from ingero.cli.fanout.options import FanoutOptions
from ingero.core.clocks.skew import ClockOffset
from ingero.transport.fanout.ask import Fanout
from ingero.transport.fanout.client import NodeReply, Question

TakeReply: TypeAlias = Callable[[NodeReply], None]


@dataclass(slots=True)
class FanoutResult:
    """Which nodes answered, how far their clocks are off, and whether Ctrl-C came first."""

    answered: set[str] = field(default_factory=set)
    offsets: dict[str, ClockOffset] = field(default_factory=dict)
    interrupted: bool = False


def ask_nodes(options: FanoutOptions, *questions: tuple[Question, TakeReply]) -> FanoutResult:
    """Ask all nodes one question after the other; each `TakeReply` gets the replies in node order.

    Ctrl-C ends the questions; replies that have arrived by then are still delivered.
    """
    result = FanoutResult()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_ask(options, questions, result))
    except KeyboardInterrupt:
        result.interrupted = True
    return result


async def _ask(
    options: FanoutOptions, questions: tuple[tuple[Question, TakeReply], ...], result: FanoutResult
) -> None:
    async with Fanout(options.policy, keep_open=False) as fanout:
        try:
            for question, take in questions:
                result.answered = set()
                async for reply in fanout.ask(options.nodes, question):
                    result.answered.add(reply.address)
                    take(reply)
        except asyncio.CancelledError:
            if sys.stderr.isatty():
                print(file=sys.stderr)  # the terminal has printed ^C on this line
            for reply in fanout.unread():
                result.answered.add(reply.address)
                take(reply)
            raise
        finally:
            result.offsets = fanout.offsets(options.nodes)
