"""Documentation is complete: every command, setting, endpoint and metric is described."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.support.commands import commands_by_name

from ingero.cli.command_list import COMMANDS, GROUPS
from ingero.cli.reference import PAGES, settings_of
from ingero.contract import api_paths

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ingero"
DOCS = ROOT / "docs"
FLAGS_OF_OTHERS = {"--help", "--version", "--nproc-per-node", "--enable-metrics"} | {
    f"--{name}"
    for name in (
        *("cacert", "data", "fail-with-body", "header", "show-error", "silent"),  # curl
        *("gpus-per-node", "ntasks-per-node", "overlap"),  # Slurm
        *("nnodes", "rdzv-backend", "rdzv-endpoint"),  # torchrun
        *("cpu", "from-file", "no-deps"),  # stress-ng, kubectl, pip
        *("set", "namespace", "create-namespace", "reuse-values"),  # helm
        *("cap-add", "cap-drop", "detach", "force", "name", "pid", "privileged"),  # podman
        *("read-only", "security-opt", "tmpfs", "user"),
        *("fail", "now", "install", "check"),  # curl, systemctl, dpkg, sha256sum
    )
}


def source_strings(pattern: str) -> set[str]:
    found = {
        match
        for module in SOURCE.rglob("*.py")
        for match in re.findall(pattern, module.read_text())
    }
    assert found, f"nothing matches {pattern}"
    return found


def test_every_command_is_in_a_group_and_documented() -> None:
    text = (DOCS / "commands.md").read_text()
    assert {group for _, group, _, _ in COMMANDS} <= set(GROUPS)
    assert [name for name, *_ in COMMANDS if f"`ingero {name}" not in text] == []


def test_every_setting_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    missing = []
    for configuration in ("ingero", "fleet", "echo"):
        for entry in settings_of(configuration):
            names = entry.key.split(".")
            ends = [".".join(names[i:]) for i in range(len(names))]  # tables may shorten a key
            if not any(f"`{end}`" in text for end in ends):
                missing.append(entry.key)
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_generated_pages_are_current(page: str) -> None:
    """`make docs` brings them up to date."""
    text = (DOCS / page).read_text()
    assert PAGES[page](text) == text


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
    known = {
        flag for command in commands_by_name().values() for flag in flags_of(command)
    } | FLAGS_OF_OTHERS
    written = {
        f"{page.relative_to(ROOT)}: {flag}"
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for flag in re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]+)", page.read_text())
        if flag not in known
    }
    assert written == set()


def flags_of(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield from flags_of(inner)


def test_readme_is_short_and_promises_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") < 130
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


def test_every_module_that_a_page_names_exists() -> None:
    pages = [DOCS / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("decisions/*.md")]
    names_alone = {path.name for path in SOURCE.rglob("*.p*")}  # `lag.py`, after its folder
    missing = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in re.findall(r"\w[\w/]*\.(?:py|pyx|pxi|pxd)\b", page.read_text())
        if name not in names_alone and not (SOURCE / name).exists() and not (ROOT / name).exists()
    }
    assert missing == set()
