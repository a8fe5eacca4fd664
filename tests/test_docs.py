"""Documentation is complete: every command, setting, endpoint and metric is described where a reader looks for it."""

import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path

import ingero.config
from ingero.cli.grammar import COMMANDS, GROUPS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ingero"
DOCS = ROOT / "docs"


def source_strings(pattern: str) -> set[str]:
    return {match for module in SOURCE.rglob("*.py") for match in re.findall(pattern, module.read_text())}


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
                keys = [field.metadata.get("key") or field.name for field in dataclasses.fields(value)]
                missing += [f"{name}.{key}" for key in keys if f"`{key}`" not in text]
    assert missing == []


def test_every_endpoint_is_documented() -> None:
    text = (DOCS / "api.md").read_text()
    routes = source_strings(r'(?:Route|Mount)\(\s*"(/[^"]*)"')
    assert sorted(route for route in routes if f"{route}" not in text) == []


def test_every_metric_is_documented() -> None:
    text = (DOCS / "metrics.md").read_text()
    metrics = source_strings(r'"(ingero_(?:fleet|agent|sink|echo|trace|ringbuf)_[a-z0-9_]+)"')
    assert sorted(metric for metric in metrics if f"`{metric}`" not in text) == []


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
