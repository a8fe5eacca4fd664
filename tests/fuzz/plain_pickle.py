"""Pickles of strangers: plain values of bounded size, or a refusal."""

import pickletools

from ingero.errors import MalformedInput
from ingero.importers.plain_pickle import load_plain

PLAIN = (type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset)


def fuzz(data: bytes) -> None:
    """A value is made of plain types only, and the operations name no class."""
    try:
        value = load_plain(data)
    except MalformedInput:
        return
    _check(value, 0, set())
    names = {operation.name for operation, _, _ in pickletools.genops(data)}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ"}


def _check(value: object, depth: int, seen: set[int]) -> None:
    assert isinstance(value, PLAIN)
    if depth > 50 or id(value) in seen:
        return
    if isinstance(value, list | tuple | set | frozenset | dict):
        seen.add(id(value))
        inner = [*value, *value.values()] if isinstance(value, dict) else [*value]
        for each in inner[:100]:
            _check(each, depth + 1, seen)
