"""Encode the state of a cluster's verdict engine, so that a replay can begin in the middle.

Only plain values, numpy arrays of numbers and classes of the verdict engine are encoded. Decoding
calls no constructor and imports nothing but these classes, so a hostile state can only be wrong.
"""

import hashlib
import importlib
import zlib
from collections import defaultdict, deque
from collections.abc import Callable
from enum import Enum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np

from ingero.errors import ForeignFile

if TYPE_CHECKING:
    from ingero.fleet.cluster_verdicts import ClusterVerdicts

MAX_STATE_BYTES: Final = 256 << 20  # decompressed
_MODULES: Final = (
    "ingero.core.verdict.",
    "ingero.core.collectives.",
    "ingero.core.places.",
    "ingero.contract.",
    "ingero.core.inference.",
    "ingero.fleet.cluster_verdicts",
    "ingero.fleet.causes.book",
)
_PLAIN: Final = (type(None), bool, int, float, str, bytes)
_KINDS: Final = "biuf"  # of numpy types: booleans and numbers
_FACTORIES: Final[dict[str, Callable[[], Any]]] = {
    "list": list, "dict": dict, "set": set, "int": int, "float": float, "deque": deque,
}  # fmt: skip


@cache
def made_by() -> str:
    """Return what a state is marked with: the version, and a digest of the sources of its classes.

    A state is read by the build that wrote it: another one may lack a column or mean another thing.
    The sources are read by the first call, which belongs before the service starts.
    """
    return f"{version('ingero')} (state {digest_of_sources(Path(__file__).parents[2])})"


def digest_of_sources(package: Path) -> str:
    """Return a digest of the sources of all classes that are part of a state."""
    digest = hashlib.sha256()
    for name in _MODULES:
        path = package.parent / name.rstrip(".").replace(".", "/")
        is_module = not name.endswith(".")
        for source in [path.with_suffix(".py")] if is_module else sorted(path.rglob("*.py")):
            digest.update(source.relative_to(package).as_posix().encode() + b"\0")
            digest.update(source.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


def encode_state(state: object) -> bytes:
    """Return the state of a cluster, or of another owner of state, compressed.

    A value of a foreign type raises TypeError.
    """
    plain = [made_by(), _Encoder().encode(state)]
    return zlib.compress(msgspec.msgpack.encode(plain), 1)


def decode_state(data: bytes) -> "ClusterVerdicts":
    """Read the state of a cluster of this version; raise ForeignFile for anything else."""
    from ingero.fleet.cluster_verdicts import ClusterVerdicts  # noqa: PLC0415 - see verdicts.py

    state = decode_any_state(data)
    if not isinstance(state, ClusterVerdicts):
        raise ForeignFile("the recorded state of the engine is damaged: not a cluster")
    return state


def decode_any_state(data: bytes) -> Any:
    """Read what `encode_state` of this version returned; raise ForeignFile for anything else."""
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(data, MAX_STATE_BYTES)
        if unpacker.unconsumed_tail:
            raise ForeignFile("the recorded state of the engine is too large")
        writer, content = msgspec.msgpack.decode(plain, type=tuple[str, Any])
        if writer != made_by():
            raise ForeignFile(
                f"these inputs were kept by version {writer}, and this is {made_by()}; "
                "replay them with the version of that Fleet"
            )
        return _Decoder().decode(content)
    except (
        zlib.error, msgspec.DecodeError, ValueError, TypeError, KeyError, IndexError,
        AttributeError, ImportError, RecursionError,
    ) as error:  # fmt: skip
        raise ForeignFile(f"the recorded state of the engine is damaged: {error}") from None


class _Encoder:
    """Turns objects into lists that begin with a tag; an object met again becomes a reference."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []  # so that no id is given to a second object

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            is_large = kind is int and not -(1 << 63) <= value < 1 << 64
            return ["int", str(value)] if is_large else value
        if isinstance(value, Enum):
            return ["enum", _name(kind), value.value]
        if isinstance(value, np.generic):
            return ["number", *_array(np.asarray(value))]
        if isinstance(value, tuple):
            return ["tuple", _name(kind) if kind is not tuple else "", self._all(value)]
        if kind is frozenset:
            return ["frozenset", self._all(value)]
        if id(value) in self._seen:
            return ["again", self._seen[id(value)]]
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return self._first(value, kind)

    def _first(self, value: Any, kind: type) -> list[Any]:
        if kind is np.ndarray:
            return ["array", *_array(value)]
        if kind in (list, set):
            return [kind.__name__, self._all(value)]
        if kind is deque:
            return ["deque", value.maxlen, self._all(value)]
        if kind in (dict, defaultdict):
            pairs = [self.encode(each) for pair in value.items() for each in pair]
            factory = getattr(value, "default_factory", None)
            return ["dict", "" if factory is None else factory.__name__, pairs]
        name = _name(kind)
        if isinstance(value, msgspec.Struct):
            return ["struct", name, self._all(msgspec.structs.astuple(value))]
        fields = [field for field in _fields(value) if hasattr(value, field)]
        return ["object", name, fields, [self.encode(getattr(value, field)) for field in fields]]

    def _all(self, values: Any) -> list[Any]:
        return [self.encode(each) for each in values]


class _Decoder:
    """The inverse of _Encoder, for content that is not trusted."""

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def decode(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        tag, *rest = value
        match tag:
            case "int":
                return int(rest[0]) if len(rest[0]) < 1000 else 0
            case "enum":
                return cast(Any, _class(rest[0], Enum))(rest[1])
            case "number":
                return _numbers(*rest)[()]
            case "tuple":
                items = self._all(rest[1])
                return cast(Any, _class(rest[0], tuple))._make(items) if rest[0] else tuple(items)
            case "frozenset":
                return frozenset(self._all(rest[0]))
            case "again":
                return self._seen[rest[0]]
            case _:
                return self._first(tag, rest)

    def _first(self, tag: str, rest: list[Any]) -> Any:
        place = len(self._seen)
        self._seen.append(None)
        if tag == "array":
            self._seen[place] = _numbers(*rest)
        elif tag == "struct":
            kind = cast(Any, _class(rest[0], msgspec.Struct))
            values = self._all(rest[1])
            self._seen[place] = kind(**dict(zip(kind.__struct_fields__, values, strict=True)))
        else:
            self._seen[place] = made = self._empty(tag, rest)
            self._fill(made, tag, rest)
        return self._seen[place]

    def _empty(self, tag: str, rest: list[Any]) -> Any:
        if tag in ("list", "set"):
            return _FACTORIES[tag]()
        if tag == "deque":
            return deque(maxlen=rest[0])
        if tag == "dict":
            return defaultdict(_FACTORIES[rest[0]]) if rest[0] else {}
        if tag == "object":
            kind = _class(rest[0], object)
            return object.__new__(kind)
        raise ValueError(f"unknown tag {tag!r}")

    def _fill(self, made: Any, tag: str, rest: list[Any]) -> None:
        if tag == "dict":
            items = self._all(rest[1])
            made.update(zip(items[::2], items[1::2], strict=True))
        elif tag == "object":
            for name, value in zip(rest[1], self._all(rest[2]), strict=True):
                if name.startswith("__"):
                    raise ValueError(f"no attribute of a state: {name}")
                object.__setattr__(made, name, value)
        elif tag == "set":
            made.update(self._all(rest[0]))
        else:
            made.extend(self._all(rest[-1]))

    def _all(self, values: Any) -> list[Any]:
        return [self.decode(each) for each in values]


def _array(array: np.ndarray[Any, Any]) -> tuple[str, list[int], bytes]:
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"an array of {array.dtype} is not part of a state")
    return array.dtype.str, list(array.shape), array.tobytes()


def _numbers(dtype: str, shape: list[int], data: bytes) -> np.ndarray[Any, Any]:
    kind = np.dtype(str(dtype))
    if kind.kind not in _KINDS:
        raise ValueError(f"an array of {kind} is not part of a state")
    return np.frombuffer(data, kind).reshape(shape).copy()


def _fields(value: object) -> list[str]:
    """Return the attributes that an object can have, from its slots and its dictionary."""
    slots: list[str] = []
    for kind in type(value).__mro__:
        named = getattr(kind, "__slots__", ())
        slots += [named] if isinstance(named, str) else named
    return [*slots, *getattr(value, "__dict__", {})]


def _name(kind: type) -> str:
    if not kind.__module__.startswith(_MODULES):
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not part of a state")
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str, base: type) -> type:
    """Return a class of the verdict engine by its name."""
    module, _, qualname = name.partition(":")
    if not module.startswith(_MODULES):
        raise ValueError(f"{module} has no part in a state")
    found = getattr(importlib.import_module(module), qualname)
    if not (isinstance(found, type) and issubclass(found, base) and found.__module__ == module):
        raise ValueError(f"{name} is no class of a state")
    return found
