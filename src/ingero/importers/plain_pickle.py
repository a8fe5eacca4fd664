"""Read pickles of strangers: plain containers, texts and numbers, and nothing else.

The operations are checked before Python's unpickler sees them. No class, global or persistent
object is ever resolved, no length reaches beyond the file, and no place in the memo is larger than
the part of the file before it, because the unpickler allocates what a length or place claims.
"""

import io
import pickle  # only through _PlainUnpickler, after `check_operations`
from typing import Any, Final, NoReturn

from ingero.errors import MalformedInput

# Operations followed by as many bytes as their value says.
_FIXED: Final = {
    **dict.fromkeys((*b"(0a]}e)lt2de1Nsu", *b"\x85\x86\x87\x88\x89\x8f\x90\x91\x94"), 0),
    pickle.PROTO[0]: 1, pickle.BININT[0]: 4, pickle.BININT1[0]: 1,
    pickle.BININT2[0]: 2, pickle.BINFLOAT[0]: 8, pickle.BINGET[0]: 1, pickle.LONG_BINGET[0]: 4,
}  # fmt: skip
# Operations followed by a length of as many bytes as their value says, and by that much data.
_COUNTED: Final = {
    pickle.BINUNICODE[0]: 4, pickle.SHORT_BINUNICODE[0]: 1, pickle.BINUNICODE8[0]: 8,
    pickle.BINBYTES[0]: 4, pickle.SHORT_BINBYTES[0]: 1, pickle.BINBYTES8[0]: 8,
    pickle.BINSTRING[0]: 4, pickle.SHORT_BINSTRING[0]: 1, pickle.BYTEARRAY8[0]: 8,
    pickle.LONG1[0]: 1, pickle.LONG4[0]: 4,
}  # fmt: skip
_PUTS: Final = {pickle.BINPUT[0]: 1, pickle.LONG_BINPUT[0]: 4}
_FRAME: Final = pickle.FRAME[0]
_STOP: Final = pickle.STOP[0]
_OF_CLASSES: Final = frozenset(b"cibRoPQ\x81\x82\x83\x84\x92\x93")
_FIXED_BY_CODE: Final = tuple(_FIXED.get(code, -1) for code in range(256))
# What the unpickler raises on damaged input.
_BROKEN: Final = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError("it asks for a class; dumps contain plain containers only")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to data outside the file")


def load_plain(data: bytes) -> Any:  # containers of unknown shape; the caller checks them
    """Return the plain containers in a pickle; raise MalformedInput for anything else."""
    check_operations(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except _BROKEN as error:
        raise MalformedInput(f"broken pickle ({type(error).__name__}: {error})") from error


def check_operations(data: bytes) -> None:
    """Raise MalformedInput unless every operation is a plain one and fits into the data."""
    fixed, end = _FIXED_BY_CODE, len(data)
    at = framed = 0  # `framed` is where the latest frame ends
    while at < end:
        code = data[at]
        skipped = fixed[code]
        is_framed = at < framed
        at += 1
        if skipped >= 0:
            at += skipped
        elif code in _COUNTED:
            at = _after_data(data, at, code)
        elif code == _STOP:
            return
        elif code == _FRAME and not is_framed:
            at = _after_frame_head(data, at)
            framed = at + int.from_bytes(data[at - 8 : at], "little")
        else:
            at = _after_rare(data, at, code)
        if is_framed and at > framed:
            raise MalformedInput(f"a frame of the pickle ends within an operation at byte {framed}")
    raise MalformedInput("the pickle ends early")


def _after_frame_head(data: bytes, at: int) -> int:
    length = int.from_bytes(data[at : at + 8], "little")
    if length > len(data) - at - 8:
        raise MalformedInput(f"the pickle ends early: a frame of {length} bytes at {at - 1}")
    return at + 8


def _after_data(data: bytes, at: int, code: int) -> int:
    width = _COUNTED[code]
    length = int.from_bytes(data[at : at + width], "little")
    if length > len(data) - at - width:
        raise MalformedInput(f"the pickle ends early: {length} bytes announced at byte {at - 1}")
    return at + width + length


def _after_rare(data: bytes, at: int, code: int) -> int:
    if code in _PUTS:
        place = int.from_bytes(data[at : at + _PUTS[code]], "little")
        if place > at:
            raise MalformedInput(f"an object of the pickle at byte {at - 1} claims place {place}")
        return at + _PUTS[code]
    if code == _FRAME:
        raise MalformedInput(f"the pickle has a frame within a frame at byte {at - 1}")
    if code in _OF_CLASSES:
        raise MalformedInput(
            f"it asks for a class at byte {at - 1}; dumps contain plain containers only"
        )
    raise MalformedInput(f"operation {code:#04x} at byte {at - 1} is not one of a dump")
