"""Load one command and run it; an error becomes one sentence and an exit status."""

import copy
import errno
import importlib
import io
import os
import sys
import traceback

import click

from ingero.cli.command_list import COMMANDS
from ingero.cli.exit_status import CANNOT_TELL, FINE, USAGE, Question, failed_status
from ingero.cli.show.safe_output import safe_output
from ingero.cli.show.table import printable
from ingero.cli.show.wrap import HelpFormatter
from ingero.compiled import install_command
from ingero.errors import IngeroError

# the extra that provides a module which the base install lacks
EXTRAS = {"duckdb": "echo", "pyarrow": "parquet", "pytz": "echo", "mcp": "mcp", "PIL": "all"}

HELP = ["-h", "--help"]


def run(args: list[str]) -> int:
    """Run the command named by the first argument."""
    targets = {name: target for name, _, _, target in COMMANDS}
    target = targets.get(args[0])
    if target is None:
        import difflib

        close = difflib.get_close_matches(args[0], targets, n=1)
        hint = (
            f"; did you mean `ingero {close[0]}`?"
            if close
            else "; `ingero --help` lists the commands"
        )
        print(f"ingero: no command {args[0]!r}{hint}", file=sys.stderr)
        return USAGE
    module, name = target.split(":")
    command: click.Command = getattr(importlib.import_module(module), name)
    return run_click(command, args[1:], f"ingero {args[0]}")


def run_click(command: click.Command, args: list[str], prog_name: str) -> int:
    """Run a click command; every console script of ours does it this way."""
    try:
        return _run_or_lose_output(command, args, prog_name)
    except Exception:
        if not isinstance(command, Question):
            raise  # Python shows it and exits with 1, which of a question would mean "slow"
        print(*map(printable, traceback.format_exc().splitlines()), sep="\n", file=sys.stderr)
        return CANNOT_TELL


def _run_or_lose_output(command: click.Command, args: list[str], prog_name: str) -> int:
    # who asked whether somebody is slow and leaves before the answer has not been told "nobody"
    status = CANNOT_TELL if isinstance(command, Question) else FINE
    try:
        with safe_output():
            status = _run_in_context(command, args, prog_name)
        sys.stdout.flush()  # here, so that a closed pipe or a full disk is still handled
    except OSError as error:
        return output_lost(error, prog_name, status, failed_status(command, error))
    return status


def _with_version(command: click.Command, script: str) -> click.Command:
    """Return a copy of a command that knows --version, as do all commands in it."""

    def show(context: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            from ingero.cli.version import version_text

            click.echo(version_text(script))
            context.exit()

    shown = copy.copy(command)
    if not any("--version" in param.opts for param in command.params):
        option = click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=show,
            help="Show what is installed and exit.",
        )
        shown.params = [*command.params, option]
    if isinstance(shown, click.Group):
        shown.commands = {
            name: _with_version(inner, script) for name, inner in shown.commands.items()
        }
    return shown


def output_lost(error: OSError, prog_name: str, answered: int, failed: int) -> int:
    """Return the exit status when standard output cannot be written; raise other errors again."""
    if isinstance(error, BrokenPipeError):  # `| head` has read enough
        status = answered
    elif error.errno == errno.ENOSPC:
        print(f"{prog_name}: no space left on the device of the output", file=sys.stderr)
        status = failed
    else:
        raise error
    # Python flushes standard output once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _run_in_context(command: click.Command, args: list[str], prog_name: str) -> int:
    name = prog_name
    command = _with_version(command, prog_name.split(maxsplit=1)[0])
    click.Context.formatter_class = HelpFormatter  # click takes it from here alone
    try:
        with command.make_context(prog_name, list(args), help_option_names=HELP) as context:
            try:
                status = command.invoke(context)
            finally:
                name = f"{prog_name} {context.invoked_subcommand or ''}".rstrip()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        return 130
    except (KeyboardInterrupt, EOFError):
        print(file=sys.stderr)  # the terminal has printed ^C on this line
        return 130
    except click.ClickException as error:
        # A part of the text may be the name of a file that somebody else made.
        text = io.StringIO()
        error.show(text)
        lines = text.getvalue().expandtabs(4).rstrip("\n").split("\n")  # click indents with tabs
        print(*map(printable, lines), sep="\n", file=sys.stderr)
        return error.exit_code
    except IngeroError as error:
        # A part of the text may come from a peer.
        lines = [printable(line) for line in f"{name}: {error}".splitlines()]
        print(*lines, sep="\n", file=sys.stderr)
        return failed_status(command, error)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        print(
            f"{name}: needs {error.name}; install it with `{install_command(extra)}`",
            file=sys.stderr,
        )
        return failed_status(command, error)
    except OSError as error:
        if error.filename is None:
            raise
        print(
            f"{name}: cannot use {printable(error.filename)}: {error.strerror}; name another path",
            file=sys.stderr,
        )
        return failed_status(command, error)
    return status if isinstance(status, int) else FINE
