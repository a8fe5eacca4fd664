"""Setting and removing single values of a YAML file in place; all other text stays as it is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ingero.config.ingero import IngeroConfig
from ingero.config.loader import load_text
from ingero.errors import ConfigError
from ingero.files import replace_file

KeyPath = tuple[str, ...]


def change_file(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Set values of an ingero.yaml by dotted key, None to remove one; return what was there.

    The file is created when it does not exist. Raises ConfigError, and changes nothing, when it
    cannot be changed or would not load any more.
    """
    text = path.read_text() if path.exists() else ""
    before, changed = _load(text), text
    for key, value in values.items():
        changed = set_value(changed, tuple(key.split(".")), value)
    load_text(IngeroConfig, changed, str(path))  # a file that does not load never replaces one
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, changed.encode(), 0o644)
    return {key: _at(before, tuple(key.split("."))) for key in values}


def set_value(text: str, key: KeyPath, value: Any) -> str:
    """Return the text with one value set, or removed where it is None; raises ConfigError."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    changed = _removed(text, root, key) if value is None else _set(text, root, key, value)
    wanted = _wanted(_load(text), key, value)
    try:
        after = _load(changed)
    except yaml.YAMLError:
        after = None
    if _without_empty(after) != _without_empty(wanted):
        what = "remove it" if value is None else f"set it to {json.dumps(value)}"
        raise ConfigError(
            f"{'.'.join(key)} cannot be changed automatically in this file, because of the way it "
            f"is written; {what} there"
        )
    return changed


def _load(text: str) -> Any:
    return yaml.safe_load(text) or {}


def _at(document: Any, key: KeyPath) -> Any:
    for name in key:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _wanted(document: Any, key: KeyPath, value: Any) -> Any:
    below = dict(document) if isinstance(document, dict) else {}
    if len(key) > 1:
        below[key[0]] = _wanted(below.get(key[0]), key[1:], value)
    else:
        below[key[0]] = value
    return below


def _without_empty(document: Any) -> Any:
    """Return a document without nulls and empty mappings, which mean the same as nothing."""
    if not isinstance(document, dict):
        return document
    cleaned = {name: _without_empty(value) for name, value in document.items()}
    return {name: value for name, value in cleaned.items() if value is not None and value != {}}


def _set(text: str, root: yaml.Node | None, key: KeyPath, value: Any) -> str:
    node, rest = root, key
    while isinstance(node, yaml.MappingNode):
        child = _child(node, rest[0])
        if child is None or len(rest) == 1:
            break
        node, rest = child, rest[1:]
    if node is None:
        end = "" if not text or text.endswith("\n") else "\n"
        return f"{text}{end}{_block(rest, value, 0)}\n"
    if not isinstance(node, yaml.MappingNode):  # `fleet:` with nothing below it
        indent = 2 * (len(key) - len(rest))
        begin, end_at = node.start_mark.index, node.end_mark.index
        return f"{text[:begin].rstrip(' ')}\n{_block(rest, value, indent)}{text[end_at:]}"
    present = _child(node, rest[0])
    if present is not None:
        begin, end_at = present.start_mark.index, present.end_mark.index
        return text[:begin] + json.dumps(value, ensure_ascii=False) + text[end_at:]
    if node.flow_style or not node.value:
        at = node.start_mark.index + 1
        comma = ", " if node.value else ""
        inner = json.dumps(_wanted({}, rest, value), ensure_ascii=False)[1:-1]
        return f"{text[:at]}{inner}{comma}{text[at:]}"
    first = node.value[0][0].start_mark
    block = _block(rest, value, first.column).lstrip(" ")
    return f"{text[: first.index]}{block}\n{' ' * first.column}{text[first.index :]}"


def _block(key: KeyPath, value: Any, indent: int) -> str:
    lines = [f"{' ' * (indent + 2 * depth)}{name}:" for depth, name in enumerate(key)]
    return "\n".join(lines) + f" {json.dumps(value, ensure_ascii=False)}"


def _removed(text: str, root: yaml.Node | None, key: KeyPath) -> str:
    node = root
    for name in key[:-1]:
        node = _child(node, name)
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    if len(key) > 1 and [name.value for name, _ in pairs] == [key[-1]]:
        return _removed(text, root, key[:-1])  # nothing would be left below it
    for number, (name_node, child) in enumerate(pairs):
        if name_node.value != key[-1]:
            continue
        begin, end = name_node.start_mark.index, _end_of(child)
        if isinstance(node, yaml.MappingNode) and node.flow_style:
            if number + 1 < len(pairs):
                end = pairs[number + 1][0].start_mark.index
            elif number:
                begin = pairs[number - 1][1].end_mark.index
            return text[:begin] + text[end:]
        line_begin = text.rfind("\n", 0, begin) + 1
        line_end = text.find("\n", end)
        return text[:line_begin] + (text[line_end + 1 :] if line_end >= 0 else "")
    return text


def _end_of(node: yaml.Node) -> int:
    """Return where the text of a node ends; that of a block ends with its last value."""
    is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value
    if not is_block:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end_of(last[1] if isinstance(last, tuple) else last)


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
