"""What of Ingero is installed: compiled parts, and how to add an extra.

What was not compiled runs in pure Python: a module with a compiled twin picks one of the two with
`compiled_or_pure`.
"""

import importlib
import json
import os
import shlex
import urllib.parse
from typing import Final, TypeVar

PURE_VARIABLE: Final = "INGERO_PURE_PYTHON"  # set it to leave compiled parts unused
CODECS: Final = "ingero.contract._native.codecs"
FAST_PATH: Final = "ingero.fleet._native.fast_path"
_NAMES: Final = {CODECS: "codecs", FAST_PATH: "fast path"}

Twin = TypeVar("Twin")


def compiled_or_pure(part: str, name: str, pure: Twin) -> Twin:
    """Return `name` of a compiled part, or `pure` where the part cannot be used."""
    if os.environ.get(PURE_VARIABLE):
        return pure
    try:
        module = importlib.import_module(part)
    except ImportError:  # built without a compiler
        return pure
    twin: Twin = getattr(module, name)
    return twin


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    A checkout is installed from its folder; its name would fetch another package, or none.
    """
    import importlib.metadata  # noqa: PLC0415 - slow to import, and only an error needs it

    try:
        text = importlib.metadata.distribution("ingero").read_text("direct_url.json") or "{}"
    except importlib.metadata.PackageNotFoundError:
        text = "{}"
    origin = json.loads(text)
    url = urllib.parse.urlsplit(str(origin.get("url", "")))
    if url.scheme != "file":
        return f"pip install 'ingero[{extra}]'"
    edited = "-e " if origin.get("dir_info", {}).get("editable") else ""
    folder = urllib.parse.unquote(url.path)
    return f"pip install {edited}{shlex.quote(f'{folder}[{extra}]')}"


def parts_in_use() -> list[str]:
    """Return the names of the compiled parts, in a fixed order."""
    return [name for part, name in _NAMES.items() if compiled_or_pure(part, "__name__", "")]


def missing_parts() -> list[str]:
    """Return the names of the parts that run in pure Python instead."""
    used = parts_in_use()
    return [name for name in _NAMES.values() if name not in used]


def describe_parts() -> str:
    """Return the line that `ingero --version` shows."""
    names = ", ".join(parts_in_use())
    return f"compiled parts: {names or 'none (pure Python; slower)'}"
