"""F153: native addresses of a real process resolve to the functions they are in."""

import subprocess
import sys
from pathlib import Path

from ingero.agent.stacks import symbols
from ingero.agent.stacks.python import PythonFrame
from ingero.agent.stacks.resolver import StackResolver, merge_frames
from ingero.agent.stacks.symbols import NativeFrame, Symbolizer
from ingero.core.recording.stacks import Frame

PRINT = """
import ctypes, sys
libc = ctypes.CDLL(None)
print(ctypes.cast(libc.getppid, ctypes.c_void_p).value, flush=True)
sys.stdin.readline()
"""


def test_address_inside_a_function_gets_its_name_and_distance() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRINT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        address = int(process.stdout.readline())
        first, inside, nowhere = Symbolizer().resolve(process.pid, [address, address + 1, 0x10])
        assert first.symbol in ("getppid", "__getppid") and first.text == first.symbol
        assert inside.text == f"{first.symbol}+0x1"
        assert first.file and Path(first.file).name.startswith("libc")
        assert nowhere == NativeFrame(0x10, None, 0, None) and nowhere.text == "0x10"
        frames = StackResolver()(process.pid, process.pid, (address,))
        assert [frame.py_func for frame in frames if frame.py_func] == ["<module>"]
    finally:
        process.kill()
        process.communicate()


def test_process_that_is_gone_leaves_bare_addresses() -> None:
    assert Symbolizer().resolve(2**22 + 7, [5]) == [NativeFrame(5, None, 0, None)]


def test_python_frames_stand_where_the_interpreter_begins() -> None:
    native = [
        NativeFrame(1, "launch", 4, "/x/libcudart.so.12"),
        NativeFrame(2, "_PyEval", 0, "/usr/lib/libpython3.12.so"),
    ]
    python = [PythonFrame("train.py", "step", 7)]
    source = Frame(py_file="train.py", py_func="step", py_line=7)
    merged = merge_frames(native, python)
    assert [frame.symbol or frame.py_func for frame in merged] == ["launch+0x4", "step", "_PyEval"]
    assert merged[1] == source
    assert merge_frames(native[:1], python)[0] == source


def test_symbols_are_read_once_per_file_and_mappings_once_a_second(monkeypatch) -> None:
    """Eight ranks map the same libraries, and stacks often hold addresses in no file at all."""
    opened, reads = [], []
    table, maps = symbols.FunctionTable, symbols.find_regions
    monkeypatch.setattr(symbols, "FunctionTable", lambda *file: opened.append(file) or table(*file))
    monkeypatch.setattr(symbols, "find_regions", lambda pid: reads.append(pid) or maps(pid))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PRINT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        symbolizer = Symbolizer(read_again_s=3600.0)
        for rank in ranks:
            assert rank.stdout
            address = int(rank.stdout.readline())
            for _ in range(3):
                assert symbolizer.resolve(rank.pid, [address, 0x10])[0].symbol
        assert (len(opened), reads) == (1, [rank.pid for rank in ranks])
        ranks[1].kill()
        ranks[1].wait()
        symbolizer.read_again_s = 0.0
        assert symbolizer.resolve(ranks[1].pid, [address, 0x10])[0].symbol, (
            "what was known of it still holds"
        )
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


REPLACE = """
import os, sys
def {}():
    print("ready", flush=True)
    sys.stdin.readline()
{}()
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""


def test_program_that_replaced_another_is_read_anew() -> None:
    """exec keeps pid and start time, and puts the interpreter elsewhere."""
    code = REPLACE.format("first", "first")
    command = [sys.executable, "-c", code, REPLACE.format("second", "second")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        resolver, seen = StackResolver(), []
        for _ in range(2):
            assert process.stdout and process.stdin and process.stdout.readline()
            seen.append(
                [frame.py_func for frame in resolver(process.pid, process.pid, ()) if frame.py_func]
            )
            process.stdin.write("\n")
            process.stdin.flush()
        assert seen == [["first", "<module>"], ["second", "<module>"]]
    finally:
        process.kill()
        process.communicate()
