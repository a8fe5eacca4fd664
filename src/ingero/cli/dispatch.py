"""Loads one command of the grammar and runs it; errors become one sentence and an exit status."""

import difflib
import errno
import importlib
import os
import sys

import click

from ingero.cli.command_list import COMMANDS
from ingero.cli.show.table import printable
from ingero.errors import IngeroError

# what a base install leaves out, by module
EXTRAS = {"duckdb": "echo", "pyarrow": "echo", "pytz": "echo", "mcp": "mcp", "PIL": "all"}


def run(args: list[str]) -> int:
    """Run the command named by the first argument."""
    targets = {name: target for name, _, _, target in COMMANDS}
    target = targets.get(args[0])
    if target is None:
        close = difflib.get_close_matches(args[0], targets, n=1)
        hint = (
            f"; did you mean `ingero {close[0]}`?"
            if close
            else "; `ingero --help` lists the commands"
        )
        print(f"ingero: no command {args[0]!r}{hint}", file=sys.stderr)
        return 2
    module, name = target.split(":")
    command: click.Command = getattr(importlib.import_module(module), name)
    return run_click(command, args[1:], f"ingero {args[0]}")


def run_click(command: click.Command, args: list[str], prog_name: str) -> int:
    """Run a click command the way every console script of ours does."""
    try:
        status = _run_in_context(command, args, prog_name)
        sys.stdout.flush()  # while a reader that left or a full disk can still be told
    except OSError as error:
        return output_lost(error, prog_name)
    return status


def output_lost(error: OSError, prog_name: str) -> int:
    """The exit status when standard output takes no more; any other error rises again."""
    if isinstance(error, BrokenPipeError):  # `| head`: the reader has seen enough
        status = 0
    elif error.errno == errno.ENOSPC:
        print(f"{prog_name}: no space left where the output goes", file=sys.stderr)
        status = 1
    else:
        raise error
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
    )  # Python flushes once more on its way out
    return status


def _run_in_context(command: click.Command, args: list[str], prog_name: str) -> int:
    name = prog_name
    try:
        with command.make_context(prog_name, list(args)) as context:
            try:
                status = command.invoke(context)
            finally:
                name = f"{prog_name} {context.invoked_subcommand or ''}".rstrip()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        return 130
    except (KeyboardInterrupt, EOFError):
        print(file=sys.stderr)  # the shell's prompt goes below ^C
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except IngeroError as error:
        lines = [
            printable(line) for line in f"{name}: {error}".splitlines()
        ]  # some of it may be what a peer said
        print(*lines, sep="\n", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        print(
            f"{name}: needs {error.name}; install it with `pip install 'ingero[{extra}]'`",
            file=sys.stderr,
        )
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(
            f"{name}: cannot use {printable(error.filename)}: {error.strerror}; name another",
            file=sys.stderr,
        )
        return 1
    return status if isinstance(status, int) else 0
