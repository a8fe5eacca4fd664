"""The generated parts of docs/: `python -m ingero.cli.reference` brings every page up to date.

A page is written by hand, except between two comments: what is there is replaced by what the
code declares. `<!-- settings NAME KEY… -->` becomes a table of these settings, up to the next
`<!-- end -->`. NAME is the configuration (`ingero`, `fleet` or `echo`); KEY is a setting or a
section. `BASE:` before the keys shortens them in the table: `exporters.otlp: tls endpoint`.
`<!-- commands -->` becomes one section per command, up to the next `<!-- end -->`.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ingero.cli.reference_commands import commands_page
from ingero.cli.settings import default_text, help_text
from ingero.config.echo import EchoConfig
from ingero.config.fleet import FleetConfig
from ingero.config.fleet_alerts import TARGETS
from ingero.config.fleet_exporters import EXPORTERS
from ingero.config.ingero import IngeroConfig
from ingero.config.merge import Entry, entries_of
from ingero.config.values import choices_of

DOCS = Path("docs")
_TABLE = re.compile(r"(<!-- settings (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def settings_of(name: str) -> list[Entry]:
    """Return the settings of a configuration, with one of each kind of exporter and target."""
    if name != "fleet":
        return list(entries_of({"ingero": IngeroConfig, "echo": EchoConfig}[name]))
    found = list(entries_of(FleetConfig))
    for kind, component in EXPORTERS.items():
        if kind != "prometheus":  # the default configuration has it
            found += entries_of(component, None, f"exporters.{kind}.")
    for kind, target in TARGETS.items():
        found += entries_of(target, None, f"alerts.targets.{kind}.")
    return found


def configuration_page(page: str) -> str:
    """Return docs/configuration.md with every table of settings made anew."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(found[2].split())}\n{found[3]}", page)


PAGES: dict[str, Callable[[str], str]] = {
    "commands.md": commands_page,
    "configuration.md": configuration_page,
}


def _table(words: list[str]) -> str:
    name, *keys = words
    base = keys.pop(0).removesuffix(":") + "." if keys[0].endswith(":") else ""
    rows = [_row(entry, base) for entry in _selected(settings_of(name), base, keys)]
    heads = ("key", "default", "range", "flag", "meaning")
    used = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    head, rule = f"| {' | '.join(heads[i] for i in used)} |", f"|{'---|' * len(used)}"
    lines = [f"| {' | '.join(row[i] or '–' for i in used)} |" for row in rows]
    return "\n".join([head, rule, *lines, ""])


def _selected(entries: list[Entry], base: str, keys: list[str]) -> Iterator[Entry]:
    wanted = [f"{base}{key}" for key in keys] or [base.removesuffix(".")]
    for key in wanted:
        found = [e for e in entries if e.key == key or e.key.startswith(f"{key}.")]
        if not found:
            raise ValueError(f"no setting {key}")
        yield from (entry for entry in found if entry.type is not object)


def _row(entry: Entry, base: str) -> tuple[str, ...]:
    setting = entry.setting
    default = "required" if entry.is_required else default_text(entry)
    if entry.type is bool and setting.computed is None:
        default = str(entry.default).lower()
    allowed = setting.allowed() or ", ".join(choices_of(entry.type, setting))
    flag = " ".join(f"`{name}`" for name in (setting.flag or "").split("/") if name)
    meaning = help_text(setting)
    if setting.env:
        meaning += f" Environment variable: `{setting.env}`."
    return f"`{entry.key.removeprefix(base)}`", default, allowed, flag, meaning.replace("|", "\\|")


def main() -> int:
    """Write every generated page of the current folder's docs/."""
    for name, generate in PAGES.items():
        page = DOCS / name
        page.write_text(generate(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
