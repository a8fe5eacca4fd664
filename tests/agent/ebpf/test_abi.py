"""F129: argument places of both machines, checked against the code a real compiler makes."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.compiler import compile_c

from ingero.agent.ebpf.abi import FIRST_STACK_WORD, LOC_32BIT, LOC_PRESENT, locate
from ingero.agent.ebpf.functions import FUNCTIONS

C_TYPES = {"q": "unsigned long", "i": "unsigned", "d": "dim3", "u": "id128"}
REGISTERS = {
    "x86_64": ("di", "si", "dx", "cx", "8", "9"),
    "aarch64": tuple(str(n) for n in range(8)),
}


def word(index: int, width: int = 0) -> int:
    return LOC_PRESENT | index | width


def test_launch_stream_is_on_the_stack_of_x86_and_in_x7_of_aarch64() -> None:
    launch = "qddqqq"  # func, grid, block, args, shared bytes, stream
    assert locate(launch, "x86_64")[5] == word(FIRST_STACK_WORD + 1)
    assert locate(launch, "aarch64")[5] == word(7)


def test_seventh_argument_of_all_reduce() -> None:
    assert locate("qqqiiqq", "x86_64")[6] == word(FIRST_STACK_WORD)
    assert locate("qqqiiqq", "aarch64")[6] == word(6)


def test_unique_id_by_value_is_on_the_stack_of_x86_and_by_reference_on_aarch64() -> None:
    init = "qiui"  # out, nranks, id, rank
    assert locate(init, "x86_64") == [
        word(0),
        word(1, LOC_32BIT),
        word(FIRST_STACK_WORD),
        word(2, LOC_32BIT),
    ]
    assert locate(init, "aarch64") == [word(0), word(1, LOC_32BIT), word(2), word(3, LOC_32BIT)]


def test_ninth_argument_of_driver_launch() -> None:
    launch = "qiiiiiiiqqq"
    assert locate(launch, "x86_64")[8] == word(FIRST_STACK_WORD + 2)
    assert locate(launch, "aarch64")[8] == word(FIRST_STACK_WORD)


@given(st.text("qid", max_size=11), st.sampled_from(["x86_64", "aarch64"]))
def test_no_two_arguments_share_a_place(signature: str, machine: str) -> None:
    seen = [place & 15 for place in locate(signature, machine) if place]
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen) or machine == "x86_64"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_places_agree_with_compiled_code(machine: str, tmp_path: Path) -> None:
    """Compile, for every picked argument, a C function that returns it, and read it back."""
    source, expected = [PREAMBLE], {}
    for number, function in enumerate(FUNCTIONS):
        for pick in {pick for pick in function.picks if pick is not None}:
            if function.signature[pick] == "u":
                continue
            arguments = ", ".join(
                f"{C_TYPES[letter]} a{index}" for index, letter in enumerate(function.signature)
            )
            name = f"probe_{number}_{pick}"
            source.append(f"unsigned long {name}({arguments}) {{ return a{pick}; }}")
            expected[name] = locate(function.signature, machine)[pick]
    (tmp_path / "places.c").write_text("\n".join(source))
    target = f"{machine}-linux-gnu"
    options = ("-target", target, "-O1", "-S", "-fomit-frame-pointer", "-fno-sanitize=all")
    text = compile_c(tmp_path / "places.c", tmp_path / "places.s", *options).read_text()
    assert len(expected) > 90
    for name, place in expected.items():
        body = re.search(rf"^{name}:(.*?)^\s*ret", text, re.M | re.S)
        assert body, name
        assert place_in(body[1], machine) == place, f"{name}: {body[1]}"


PREAMBLE = "typedef struct { unsigned x, y, z; } dim3; typedef struct { char b[128]; } id128;"


def place_in(body: str, machine: str) -> int:
    """The place that the compiled function reads its result from."""
    lines = [line.split("#")[0].strip() for line in body.splitlines()]
    code = [line for line in lines if line and not line.startswith((".", "//", "/"))]
    if machine == "x86_64":
        if stack := re.search(r"mov(l|q)\s+(\d+)\(%rsp\), %([er])ax", "\n".join(code)):
            return word(
                FIRST_STACK_WORD + int(stack[2]) // 8 - 1, LOC_32BIT if stack[3] == "e" else 0
            )
        register = re.search(r"mov[lq]\s+%([er]?)(di|si|dx|cx|8|9)(d?), %[er]ax", "\n".join(code))
        if register is None:
            register = re.search(r"mov[lq]\s+%(r)(8|9)(d?), %[er]ax", "\n".join(code))
        assert register, code
        narrow = register[1] == "e" or register[3] == "d"
        return word(REGISTERS["x86_64"].index(register[2]), LOC_32BIT if narrow else 0)
    text = "\n".join(code)
    if stack := re.search(r"ldr\s+([wx])0, \[sp(?:, #(\d+))?\]", text):
        return word(FIRST_STACK_WORD + int(stack[2] or 0) // 8, LOC_32BIT if stack[1] == "w" else 0)
    if register := re.search(r"mov\s+([wx])0, [wx](\d)", text):
        return word(int(register[2]), LOC_32BIT if register[1] == "w" else 0)
    if register := re.search(r"(?:and|ubfx|uxtw)\s+x0, [wx](\d)", text):
        return word(int(register[1]), LOC_32BIT)
    return word(0)
