"""Loads one command of the grammar and runs it; errors become one sentence and an exit status."""

import difflib
import importlib
import os
import sys

import click

from ingero.cli.grammar import COMMANDS
from ingero.errors import IngeroError

# what a base install leaves out, by module
EXTRAS = {"duckdb": "echo", "pyarrow": "echo", "pytz": "echo", "mcp": "mcp", "PIL": "all"}


def run(args: list[str]) -> int:
    """Run the command named by the first argument."""
    targets = {name: target for name, _, _, target in COMMANDS}
    target = targets.get(args[0])
    if target is None:
        close = difflib.get_close_matches(args[0], targets, n=1)
        hint = f"; did you mean `ingero {close[0]}`?" if close else "; `ingero --help` lists the commands"
        print(f"ingero: no command {args[0]!r}{hint}", file=sys.stderr)
        return 2
    module, name = target.split(":")
    command: click.Command = getattr(importlib.import_module(module), name)
    return run_click(command, args[1:], f"ingero {args[0]}")


def run_click(command: click.Command, args: list[str], prog_name: str) -> int:
    """Run a click command the way every console script of ours does."""
    try:
        status = command.main(args, prog_name=prog_name, standalone_mode=False)
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except IngeroError as error:
        print(f"{prog_name}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        print(f"{prog_name}: needs {error.name}; install it with `pip install 'ingero[{extra}]'`", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our pipe left: nothing to report
        return 0
    return status if isinstance(status, int) else 0
