"""Changing ingero.yaml in place: only the affected lines change, comments and layout stay."""

import json
from pathlib import Path

import yaml

from ingero.config.ingero import IngeroConfig
from ingero.config.loader import load_text
from ingero.errors import ConfigError
from ingero.files import replace_file


def remember_trusted(path: Path, node: str, fingerprint: str) -> None:
    """Save the certificate fingerprint of a node under `fleet.trusted` of an ingero.yaml.

    The file is created when it does not exist. Raises ConfigError when the file cannot be extended.
    """
    text = path.read_text() if path.exists() else ""
    changed = add_trusted(text, node, fingerprint)
    load_text(IngeroConfig, changed, str(path))  # a file that does not load never replaces one
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, changed.encode())


def add_trusted(text: str, node: str, fingerprint: str) -> str:
    """Return the text of an ingero.yaml with `fleet.trusted[node]` set; raises ConfigError."""
    before = yaml.safe_load(text)
    changed = _with_trusted(text, json.dumps(node), json.dumps(fingerprint), node)
    wanted = dict(before or {}) if isinstance(before or {}, dict) else {}
    fleet = dict(wanted.get("fleet") or {})
    wanted["fleet"] = fleet | {"trusted": dict(fleet.get("trusted") or {}) | {node: fingerprint}}
    try:
        after = yaml.safe_load(changed)
    except yaml.YAMLError:
        after = None
    if after != wanted:
        raise ConfigError(
            "ingero.yaml is written in a way that cannot be extended automatically; "
            f'under fleet.trusted, add "{node}": "{fingerprint}"'
        )
    return changed


def _with_trusted(text: str, key: str, value: str, node: str) -> str:
    """Insert the entry; every other character of the text stays."""
    fleet = _child(yaml.compose(text, Loader=yaml.SafeLoader), "fleet")
    if fleet is None:
        end = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{end}fleet:\n  trusted:\n    {key}: {value}\n"
    if not isinstance(fleet, yaml.MappingNode):
        return _insert(
            text, fleet.start_mark.index, fleet.end_mark.index, f"\n  trusted:\n    {key}: {value}"
        )
    trusted = _child(fleet, "trusted")
    if not isinstance(trusted, yaml.MappingNode):
        if trusted is not None:
            indent = " " * (fleet.value[0][0].start_mark.column + 2)
            return _insert(
                text, trusted.start_mark.index, trusted.end_mark.index, f"\n{indent}{key}: {value}"
            )
        return _before(text, fleet, f"trusted:\n{{indent}}  {key}: {value}")
    known = next((held for name, held in trusted.value if name.value == node), None)
    if known is not None:
        return _insert(text, known.start_mark.index, known.end_mark.index, value)
    return _before(text, trusted, f"{key}: {value}")


def _before(text: str, block: yaml.MappingNode, line: str) -> str:
    """Insert a line before the first key of a block, with the same indentation."""
    if block.flow_style or not block.value:
        return text  # written in braces: the caller reports that it cannot be extended
    first = block.value[0][0].start_mark
    indent = " " * first.column
    return _insert(text, first.index, first.index, line.replace("{indent}", indent) + "\n" + indent)


def _insert(text: str, begin: int, end: int, addition: str) -> str:
    return text[:begin] + addition + text[end:]


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
