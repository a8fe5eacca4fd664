"""Completion for shells, made from the commands and their options."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from ingero.cli.command_list import COMMANDS, SCRIPTS
from ingero.cli.reference_commands import load_command
from ingero.cli.settings import SettingType


@dataclass(frozen=True, slots=True)
class Words:
    """What may follow a command: its subcommands, and its options with their values."""

    path: str
    subcommands: dict[str, str]
    options: dict[str, str]
    choices: dict[str, list[str]]


def completion_script(shell: str) -> str:
    """Return a script that completes all commands of ours in this shell."""
    words = list(_grammar())
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return "\n".join(make(words)) + "\n"


def _grammar() -> Iterator[Words]:
    own = {name: summary for name, _, summary, _ in COMMANDS}
    flags = {"--help": "Show the commands.", "--version": "Show what is installed."}
    yield Words("ingero", own, flags, {})
    for name, _, _, target in COMMANDS:
        yield from _words(f"ingero {name}", load_command(target))
    for name, target in SCRIPTS:
        yield from _words(name, load_command(target))


def _words(path: str, command: click.Command) -> Iterator[Words]:
    inner = command.commands if isinstance(command, click.Group) else {}
    options = {"--help": "Show this message and exit.", "--version": "Show what is installed."}
    choices = {}
    for param in command.params:
        if not isinstance(param, click.Option) or param.hidden:
            continue
        for flag in (*param.opts, *param.secondary_opts):
            options[flag] = (param.help or "").split(". ")[0].split("\n")[0]
            if values := _choices(param.type):
                choices[flag] = values
    described = {name: each.get_short_help_str(60) for name, each in inner.items()}
    yield Words(path, described, options, choices)
    for name, each in inner.items():
        yield from _words(f"{path} {name}", each)


def _choices(kind: click.ParamType[Any]) -> list[str]:
    if isinstance(kind, SettingType):
        return [*kind.choices()]
    return [str(choice) for choice in kind.choices] if isinstance(kind, click.Choice) else []


def _scripts(words: list[Words]) -> list[str]:
    return sorted({each.path.split()[0] for each in words})


def _bash(words: list[Words]) -> Iterator[str]:
    yield from _walk(words, 'word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"', "${COMP_WORDS[0]##*/}")
    yield "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}"
    yield '  COMPREPLY=($(compgen -W "$(_ingero_words "$path" "$previous")" -- "$current"))'
    yield "}"
    yield f"complete -o default -F _ingero {' '.join(_scripts(words))}"


def _zsh(words: list[Words]) -> Iterator[str]:
    yield f"#compdef {' '.join(_scripts(words))}"
    yield from _walk(words, 'word in "${(@)words[2,CURRENT-1]}"', "${words[1]:t}")
    yield '  local -a found=(${=$(_ingero_words "$path_" "${words[CURRENT-1]}")})'
    yield "  compadd -a found || _files"
    yield "}"
    yield f"compdef _ingero {' '.join(_scripts(words))}"


def _walk(words: list[Words], loop: str, first: str) -> Iterator[str]:
    """Yield the words of each command, and the beginning of the function that finds the command."""
    is_zsh = ":t" in first
    name = "path_" if is_zsh else "path"  # `path` is what zsh searches for programs
    yield "_ingero_words() {"
    yield '  case "$1 $2" in'
    for each in words:
        for flag, values in each.choices.items():
            yield f'    "{each.path} {flag}") echo "{" ".join(values)}"; return ;;'
    yield "  esac"
    yield '  case "$1" in'
    for each in words:
        following = " ".join([*each.subcommands, *each.options])
        yield f'    "{each.path}") echo "{following}" ;;'
    yield "  esac"
    yield "}"
    yield "_ingero() {"
    yield f"  local {name}={first} word"
    yield f"  for {loop}; do"
    yield f'    case "${name} $word" in'
    known = "|".join(f'"{each.path}"' for each in words if " " in each.path)
    yield f'      {known}) {name}="${name} $word" ;;'
    yield "    esac"
    yield "  done"


def _fish(words: list[Words]) -> Iterator[str]:
    for each in words:
        script, *inner = each.path.split()
        seen = [f"__fish_seen_subcommand_from {word}" for word in inner]
        if each.subcommands:
            names = " ".join(each.subcommands)
            here = [*seen, f"not __fish_seen_subcommand_from {names}"]
            yield from (
                f"complete -c {script} -f -n '{'; and '.join(here)}' -a {name} -d {_quoted(text)}"
                for name, text in each.subcommands.items()
            )
        condition = f" -n '{'; and '.join(seen)}'" if seen else ""
        for flag, text in each.options.items():
            kind = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            values = each.choices.get(flag)
            takes = f" -x -a {_quoted(' '.join(values))}" if values else ""
            yield f"complete -c {script}{condition} {kind}{takes} -d {_quoted(text)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
