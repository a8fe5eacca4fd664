"""Help texts are phrases that stand alone; defaults are appended to them, never typed into them."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from tests.support.commands import commands_by_name, without_groups

from ingero.cli.command_list import COMMANDS
from ingero.cli.reference_commands import help_parts
from ingero.cli.settings import default_text

ALL = dict(without_groups(commands_by_name()))
CHECKED = sorted(ALL)
LEAST_WORDS = 3
LEAST_LENGTH = 2  # of a default that a help text must not repeat; `0 means no limit` is fine
OPENINGS = """
    about above after against along although among and around as at because before behind below
    beneath beside besides between beyond but by despite during except for from if in inside instead
    into like near nor of off on onto or out outside over since so than that then though through to
    toward under underneath unless until up upon whether while with within without yet
""".split()
RETIRED = """
    brain mind thought desk docket seat lane shelf told tells heard hears speak speaks speaker says
    said patience wobble trouble story usual friends relatives companions
""".split()
_TYPED_DEFAULT = re.compile(r"\[?\bdefaults?\b( is| to|:)|by default[:,]? \d", re.IGNORECASE)
_REMARK = re.compile(r"`[^`]*`")


def help_texts(name: str, command: click.Command) -> Iterator[tuple[str, str, click.Parameter]]:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield f"{name} {parameter.opts[-1]}", parameter.help or "", parameter


def problems_of(text: str) -> list[str]:
    words = re.findall(r"[\w'’-]+", _REMARK.sub("code", text))
    lower = [word.lower() for word in words]
    found = []
    if len(words) < LEAST_WORDS:
        found.append(f"fewer than {LEAST_WORDS} words")
    if lower and lower[0] in OPENINGS:
        found.append(f"opens with {words[0]!r}")
    if not text.endswith("."):
        found.append("has no full stop")
    if _TYPED_DEFAULT.search(text):
        found.append("states a default that the option should show by itself")
    found += [f"says {word!r}" for word in RETIRED if word in lower]
    return found


@pytest.mark.parametrize("name", CHECKED)
def test_help_texts_stand_alone(name: str) -> None:
    wrong = [
        f"{option}: {text!r}: {problem}"
        for option, text, _ in help_texts(name, ALL[name])
        for problem in problems_of(text)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", CHECKED)
def test_a_command_has_a_summary_and_two_examples(name: str) -> None:
    paragraphs, examples = help_parts(ALL[name])
    summary = paragraphs[0]
    assert len(re.findall(r"[\w'’-]+", summary)) >= LEAST_WORDS
    assert summary.split()[0].lower() not in OPENINGS
    assert "\n" not in summary
    assert summary.endswith(".")
    assert sum(name in line for line in examples) >= 2
    words = {word.lower() for text in paragraphs for word in re.findall(r"[\w'’-]+", text)}
    assert words & set(RETIRED) == set()


def test_one_line_summaries_stand_alone() -> None:
    short = [name for name, _, summary, _ in COMMANDS if len(summary.split()) < LEAST_WORDS]
    opened = [name for name, _, text, _ in COMMANDS if text.split()[0] in OPENINGS]
    assert (short, opened) == ([], [])


def test_a_list_of_commands_cuts_no_summary() -> None:
    groups = [c for c in commands_by_name().values() if isinstance(c, click.Group)]
    assert groups
    for group in groups:
        groups += [each for each in group.commands.values() if isinstance(each, click.Group)]
        listed = CliRunner().invoke(group, ["--help"], terminal_width=80).output
        assert "...\n" not in listed.partition("Commands:")[2], group.name


@pytest.mark.parametrize("name", CHECKED)
def test_help_texts_do_not_repeat_the_value_of_a_default(name: str) -> None:
    wrong = []
    for option, text, parameter in help_texts(name, ALL[name]):
        entry = getattr(parameter, "entry", None)
        value = str(parameter.default if entry is None else default_text(entry))
        if len(value) >= LEAST_LENGTH and value in re.split(r"[\s,;]+|\.$", text):
            wrong.append(f"{option}: {text!r}: {value}")
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Where.", "fewer than 3 words"),
        ("Of one push.", "opens with 'Of'"),
        ("Instead of by port.", "opens with 'Instead'"),
        ("Time between two pushes  [default: 5s].", "states a default"),
        ("Nodes that the brain judges.", "says 'brain'"),
        ("Path of the socket", "has no full stop"),
    ],
)
def test_what_is_wrong_would_be_found(text: str, problem: str) -> None:
    assert any(found.startswith(problem) for found in problems_of(text))


def test_a_plain_help_text_is_accepted() -> None:
    assert problems_of("Timeout of a single push; at most the push interval.") == []
