"""The generated part of docs/commands.md: one section per command, with help and options."""

import importlib
import inspect
import re
from collections.abc import Iterator

import click

from ingero.cli.command_list import COMMANDS, GROUPS, SCRIPTS

_PART = re.compile(r"(<!-- commands -->\n).*(<!-- end -->)", re.DOTALL)
_EXAMPLES = "Examples:"
_CODE = re.compile(r"(`[^`]*`|https?://\S+)")
_FLAG = re.compile(r"(?<![\w-])(--?[a-z][a-z0-9-]*)")
_VARIABLE = re.compile(r"(\$INGERO_[A-Z_]+)")
_PAGE = re.compile(r"docs/([\w/.-]+\.md(?:#[\w-]+)?)")


def commands_page(page: str) -> str:
    """Return docs/commands.md with every section made anew."""
    return _PART.sub(lambda found: f"{found[1]}\n{_sections()}\n{found[2]}", page)


def load_command(target: str) -> click.Command:
    """Import the command that a target such as `package.module:name` names."""
    module, name = target.split(":")
    command: click.Command = getattr(importlib.import_module(module), name)
    return command


def _sections() -> str:
    lines: list[str] = []
    for group in GROUPS:
        lines.append(f"## {group}\n")
        for name, own, _, target in COMMANDS:
            if own == group:
                lines += _section(f"ingero {name}", load_command(target))
    lines.append("## Services\n")
    for name, target in SCRIPTS:
        lines += _section(name, load_command(target))
    return "\n".join(lines)


def _section(name: str, command: click.Command, level: int = 3) -> Iterator[str]:
    """Yield the section of a command, and those of its subcommands."""
    paragraphs, examples = help_parts(command)
    yield f"{'#' * level} `{name}`\n"
    yield from (f"{_marked_up(paragraph)}\n" for paragraph in paragraphs)
    if isinstance(command, click.Group):
        for inner, each in command.commands.items():
            yield from _section(f"{name} {inner}", each, level + 1)
        return
    yield "```sh"
    yield from examples
    yield "```\n"
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = [each.get_help_record(context) for each in command.params]
    rows = [
        f"| {_cell(f'`{flag}`')} | {_cell(_marked_up(text))} |"
        for flag, text in filter(None, records)
        if text  # arguments have no help of their own; the usage shows them
    ]
    yield "\n".join([f"| `{_cell(usage)}` | |", "|---|---|", *rows, ""])


def help_parts(command: click.Command) -> tuple[list[str], list[str]]:
    """Split the help of a command into its paragraphs and the lines of its examples."""
    texts = (inspect.cleandoc(text or "") for text in (command.help, command.epilog))
    whole = "\n\n".join(texts).replace("\b\n", "")
    text, examples = [], []
    for paragraph in filter(None, (part.strip("\n") for part in whole.split("\n\n"))):
        first, *lines = paragraph.splitlines()
        if first.strip() == _EXAMPLES:
            examples = [
                re.sub(r"(?<=\S)\s{2,}(?=\S)", "  # ", line.removeprefix("  ")) for line in lines
            ]
        else:
            text.append(paragraph.strip())
    return text, examples


def _marked_up(text: str) -> str:
    """Set flags and variables in code, and turn names of pages into links."""
    parts = _CODE.split(text)
    for i in range(0, len(parts), 2):  # what is between code
        part = _FLAG.sub(r"`\1`", parts[i])
        part = _VARIABLE.sub(r"`\1`", part)
        parts[i] = _PAGE.sub(lambda found: f"[{found[1]}]({found[1]})", part)
    return "".join(parts)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
