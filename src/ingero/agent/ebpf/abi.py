"""Locations of integer arguments at function entry: System V x86-64 and AAPCS64.

A probe saves eight register words and four stack words (`frame.words` in probes/calls.h).
A location is one byte: the index of the word, with flags for its presence and width.
"""

from enum import Enum
from typing import Final

LOC_PRESENT, LOC_32BIT = 0x40, 0x80
FIRST_STACK_WORD: Final = 8
STACK_WORDS: Final = 4
_REGISTERS: Final = {"x86_64": 6, "aarch64": 8}


class Arg(Enum):
    """Argument types that occur in the traced libraries."""

    WORD = "q"  # pointer, handle, size_t
    INT = "i"  # int, unsigned, enum: the upper half of the register is undefined
    DIM3 = "d"  # struct of three unsigned by value: 12 bytes, two registers or two stack words
    ID = "u"  # ncclUniqueId by value: 128 bytes


def locate(signature: str, machine: str) -> list[int]:
    """Return one location byte per argument, 0 for those the probe cannot see.

    The location of a unique id holds its address.
    """
    registers = _REGISTERS[machine]
    used, stack = 0, 0
    locations: list[int] = []
    for letter in signature:
        kind = Arg(letter)
        words = {Arg.DIM3: 2, Arg.ID: 16 if machine == "x86_64" else 1}.get(kind, 1)
        in_registers = used + words <= registers and not (kind is Arg.ID and machine == "x86_64")
        if in_registers:
            locations.append(_encode(kind, used))
            used += words
            continue
        locations.append(_encode(kind, FIRST_STACK_WORD + stack) if stack < STACK_WORDS else 0)
        stack += words
        if machine == "aarch64":
            used = registers  # after one argument on the stack, all later ones are there too
        # x86-64 may still fill the remaining registers with later, smaller arguments
    return locations


def _encode(kind: Arg, word: int) -> int:
    return LOC_PRESENT | word | (LOC_32BIT if kind is Arg.INT else 0)


def reads_stack(locations: list[int], picked: list[int]) -> bool:
    """Return whether any of the picked arguments is on the stack."""
    return any(locations[index] & 15 >= FIRST_STACK_WORD for index in picked if locations[index])
