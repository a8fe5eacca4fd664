"""Documentation is complete: every command, setting, endpoint and metric is described where a reader looks for it."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import click

import ingero.config
from ingero.cli.command_list import COMMANDS, GROUPS
from ingero.cli.commands.services import echo as echo_server
from ingero.cli.commands.services import echo_stress, straggler_sink
from ingero.cli.commands.services import fleet as fleet_server
from ingero.contract import api_paths
from ingero.core.setting import key_of

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ingero"
DOCS = ROOT / "docs"
FLAGS_OF_OTHERS = {"--help", "--version", "--nproc-per-node"} | {
    f"--{name}"
    for name in (
        *("cacert", "data", "fail-with-body", "header", "show-error", "silent"),  # curl
        *("gpus-per-node", "ntasks-per-node", "overlap"),  # Slurm
        *("nnodes", "rdzv-backend", "rdzv-endpoint"),  # torchrun
        *("cpu", "from-file", "no-deps"),  # stress-ng, kubectl, pip
    )
}


def source_strings(pattern: str) -> set[str]:
    return {
        match
        for module in SOURCE.rglob("*.py")
        for match in re.findall(pattern, module.read_text())
    }


def test_every_command_is_in_a_group_and_documented() -> None:
    text = (DOCS / "commands.md").read_text()
    assert {group for _, group, _, _ in COMMANDS} <= set(GROUPS)
    assert [name for name, *_ in COMMANDS if f"`ingero {name}" not in text] == []


def test_every_setting_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    missing = []
    for info in pkgutil.iter_modules(ingero.config.__path__, "ingero.config."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if dataclasses.is_dataclass(value) and name.endswith("Config"):
                keys = [key_of(field) for field in dataclasses.fields(value)]
                missing += [f"{name}.{key}" for key in keys if f"`{key}`" not in text]
    assert missing == []


def test_every_endpoint_is_documented() -> None:
    text = (DOCS / "api.md").read_text()
    routes = source_strings(r'(?:Route|Mount)\(\s*"(/[^"]*)"')
    routes |= {value for name, value in vars(api_paths).items() if name.isupper()}
    assert sorted(route for route in routes if f"{route}" not in text) == []


def test_every_metric_is_documented() -> None:
    text = (DOCS / "metrics.md").read_text()
    metrics = source_strings(r'"(ingero_(?:fleet|agent|sink|echo|trace|ringbuf)_[a-z0-9_]+)"')
    assert sorted(metric for metric in metrics if f"`{metric}`" not in text) == []


def test_every_environment_variable_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    variables = source_strings(r'"(INGERO_[A-Z_]+)"')
    assert sorted(variable for variable in variables if f"`{variable}`" not in text) == []


def test_every_flag_in_the_documentation_exists() -> None:
    known = {flag for command in all_commands() for flag in flags_of(command)} | FLAGS_OF_OTHERS
    written = {
        f"{page.relative_to(ROOT)}: {flag}"
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for flag in re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]+)", page.read_text())
        if flag not in known
    }
    assert written == set()


def all_commands() -> list[click.Command]:
    scripts = (fleet_server.fleet, echo_server.echo, echo_stress.stress, straggler_sink.command)
    targets = [target.split(":") for *_, target in COMMANDS]
    return [*scripts, *(getattr(importlib.import_module(module), name) for module, name in targets)]


def flags_of(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield from flags_of(inner)


def test_readme_is_short_and_promises_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") < 150
    assert "make demo" in text
    assert "make test" in text


def test_every_page_is_in_the_index() -> None:
    listed = set(re.findall(r"\]\(([^)#\s]+)", (DOCS / "README.md").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    assert sorted(pages - listed) == []


def test_relative_links_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
