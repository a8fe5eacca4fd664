"""Every command line that a page, a `--help`, an example or a message shows is accepted."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.support.commands import commands_by_name

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCES = ROOT / "src" / "ingero"
BY_NAME = commands_by_name()
SCRIPTS = [name for name in BY_NAME if not name.startswith("ingero ")]
_LINE = re.compile(rf"(?:\$ )?(?:\S+=\S+ )?(?:sudo )?(?:\S*/)?((?:ingero|{'|'.join(SCRIPTS)}) .*)")
_SHELL = ("|", "&", "&&", ";", ">", ">>")


def help_texts(name: str, command: click.Command) -> Iterator[tuple[str, str]]:
    yield f"{name} --help", command.get_help(click.Context(command, info_name=name))
    for inner, each in command.commands.items() if isinstance(command, click.Group) else ():
        yield from help_texts(f"{name} {inner}", each)


def copied_lines() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for block in re.findall(r"```[a-z]*\n(.*?)```", page.read_text(), re.DOTALL):
            yield from (
                (str(page.relative_to(ROOT)), line)
                for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines()
            )
    for name, command in BY_NAME.items():
        for source, text in help_texts(name, command):
            examples = text.partition("Example")[2].partition("\n\n")[0]
            yield from (
                (source, line) for line in re.sub(r"\s*\\\n\s*", " ", examples).splitlines()
            )


def shown_strings(path: Path) -> Iterator[str]:
    """The strings of a module that may be printed: all but docstrings, any value as X."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def quoted_lines() -> Iterator[tuple[str, str]]:
    """Commands between backquotes or in <code>, where services, commands and pages speak."""
    for room in ("agent", "cli", "echo", "fleet", "storage", "transport", "web"):
        for path in sorted((SOURCES / room).rglob("*.*")):
            if path.suffix == ".py":
                texts = [text for text in shown_strings(path) if "`ingero" in text]
            else:
                texts = [path.read_text()] if path.suffix in (".mjs", ".html") else []
            for text in texts:
                for ticked, tagged in re.findall(r"`([^`\n]+)`|<code>([^<]+)</code>", text):
                    yield str(path.relative_to(ROOT)), ticked or tagged


def words_of(line: str) -> list[str] | None:
    """The words of a command of ours, without the remark behind it; None for any other line."""
    found = _LINE.fullmatch(line.strip())
    if found is None:
        return None
    words = shlex.split(
        re.split(r"\s{2,}|\s# ", found[1])[0].replace('"$(command -v ingero)"', "ingero")
    )
    return words[: next((i for i, word in enumerate(words) if word in _SHELL), len(words))]


def take(words: list[str]) -> None:
    """Parse without running; raises ClickException for what the command does not take."""
    count = 1 if words[0] in SCRIPTS else 2
    command, rest = BY_NAME[" ".join(words[:count])], words[count:]
    while isinstance(command, click.Group):
        context = command.make_context(command.name, [*rest])
        _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None
        command = inner
    command.make_context(command.name, [*rest])


def test_they_are_taken() -> None:
    refused, taken = [], 0
    for source, line in copied_lines():
        words = words_of(line)
        if words is None or words[1:2] == ["--help"]:
            continue
        try:
            take(words)
            taken += 1
        except click.ClickException as error:
            refused.append(f"{source}: {line.strip()}: {error.format_message()}")
    assert refused == []
    assert taken > 100


def test_commands_in_messages_are_taken() -> None:
    """A name alone, as in "run `ingero join`", names the command; with words it can be pasted."""
    refused, taken = [], 0
    for source, line in quoted_lines():
        words = words_of(f"{line} ")
        if words is None or {"--help", "X"} & {*words[1:2]} or " ".join(words) in BY_NAME:
            continue
        try:
            take(words)
            taken += 1
        except click.MissingParameter:
            taken += 1  # as in `ingero export --format perfetto`, without what the reader knows
        except (click.ClickException, KeyError) as error:
            refused.append(f"{source}: {line}: {error}")
    assert refused == []
    assert taken > 50


@pytest.mark.parametrize(
    "line", ["ingero status --cluser x", "$ ingero-echo ak", "sudo ingero trace --pid x  # remark"]
)
def test_what_is_wrong_would_be_found(line: str) -> None:
    words = words_of(line)
    assert words is not None
    with pytest.raises(click.ClickException):
        take(words)
