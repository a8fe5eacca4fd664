"""Man pages, from the same help texts as --help, and the completion scripts of shells."""

import inspect
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import click

from ingero.cli.command_list import COMMANDS, SCRIPTS
from ingero.cli.commands.completion import SHELLS
from ingero.cli.completion import completion_script
from ingero.cli.reference_commands import help_parts, load_command
from release.tree import commit_time

ECHO_PAGES = ("ingero-echo", "echo-stress")


def write_manuals(folder: Path) -> list[Path]:
    """Write one page per command; those of Echo into a folder of their own."""
    pages = {"ingero": _overview()}
    for name, _, summary, target in COMMANDS:
        pages[f"ingero-{name}"] = _page(f"ingero-{name}", summary, load_command(target))
    for name, target in SCRIPTS:
        command = load_command(target)
        pages[name] = _page(name, command.get_short_help_str(200), command)
    written = []
    for name, text in pages.items():
        path = folder / ("echo" if name in ECHO_PAGES else "base") / f"{name}.1"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written


def write_completions(folder: Path) -> None:
    """Write one script per shell."""
    folder.mkdir(parents=True, exist_ok=True)
    for shell in SHELLS:
        (folder / shell).write_text(completion_script(shell))


def _overview() -> str:
    lines = [*_head("ingero", "names the slow GPU node, rank and collective of a job")]
    lines += [".SH SYNOPSIS", r"\fBingero\fR \fICOMMAND\fR [\fIOPTIONS\fR]", ".SH COMMANDS"]
    for name, _, summary, _ in COMMANDS:
        lines += [".TP", rf"\fBingero-{_escaped(name)}\fR(1)", _escaped(summary)]
    return "\n".join(lines) + "\n"


def _page(name: str, summary: str, command: click.Command) -> str:
    shown = name.replace("ingero-", "ingero ", 1) if name not in dict(SCRIPTS) else name
    lines = [*_head(name, summary), ".SH SYNOPSIS"]
    lines += _synopsis(shown, command)
    paragraphs, examples = help_parts(command)
    lines += [".SH DESCRIPTION", *(line for text in paragraphs for line in (".PP", _escaped(text)))]
    for inner, each in _leaves(shown, command):
        heading = "OPTIONS" if inner == shown else f"OPTIONS OF {inner}"
        lines += [f".SH {_escaped(heading)}", *_options(inner, each)]
        examples = examples or help_parts(each)[1]
    if examples:
        lines += [".SH EXAMPLES", ".nf", *map(_escaped, examples), ".fi"]
    return "\n".join(lines) + "\n"


def _leaves(name: str, command: click.Command) -> list[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        return [
            leaf for n, each in command.commands.items() for leaf in _leaves(f"{name} {n}", each)
        ]
    return [(name, command)]


def _synopsis(name: str, command: click.Command) -> list[str]:
    lines = []
    for inner, each in _leaves(name, command):
        pieces = each.collect_usage_pieces(click.Context(each, info_name=inner))
        lines += [rf"\fB{_escaped(inner)}\fR {_escaped(' '.join(pieces))}", ".br"]
    return lines[:-1]


def _options(name: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=name)
    records = [param.get_help_record(context) for param in command.params]
    lines = []
    for flag, text in filter(None, records):
        lines += [".TP", rf"\fB{_escaped(flag)}\fR", _escaped(text)]
    return lines


def _head(name: str, summary: str) -> list[str]:
    day = datetime.fromtimestamp(commit_time(), UTC).strftime("%Y-%m-%d")
    title = f'.TH {name.upper()} 1 "{day}" "ingero {version("ingero")}"'
    return [title, ".SH NAME", rf"{_escaped(name)} \- {_escaped(summary)}"]


def _escaped(text: str) -> str:
    """Return a text that troff prints as it is."""
    text = inspect.cleandoc(text).replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(
        "\\&" + line if line.startswith((".", "'")) else line for line in text.splitlines()
    )
