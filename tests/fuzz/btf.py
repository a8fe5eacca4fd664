"""Type information of a kernel: every question is answered or the data is called damaged."""

import struct

from ingero.agent.ebpf.loader.btf import FUNC, STRUCT, Btf
from ingero.errors import ForeignFile

_HEAD = struct.Struct("<HBBIIIII")


def fuzz(data: bytes) -> None:
    """Whole blocks, and blocks of types and names behind a sound header."""
    _ask(data)
    if data:
        rest = data[1:]
        types = min(4 * data[0], len(rest) // 4 * 4)
        head = _HEAD.pack(0xEB9F, 1, 0, _HEAD.size, 0, types, types, len(rest) - types)
        _ask(head + rest)


def _ask(data: bytes) -> None:
    try:
        btf = Btf(data)
    except ForeignFile:
        return
    questions = [lambda: btf.find(["task_struct", "f"], STRUCT), lambda: btf.find(["f"], FUNC)]
    questions += [lambda: btf.parameters("sched_switch")]
    for number in range(min(len(btf) + 1, 40)):
        questions += [
            lambda number=number: btf.type(number), lambda number=number: btf.resolve(number),
            lambda number=number: btf.members(number), lambda number=number: btf.kind_of(number),
            lambda number=number: btf.offset_of(number, "a.b"),
        ]  # fmt: skip
    for question in questions:
        try:
            question()
        except ForeignFile:
            continue
