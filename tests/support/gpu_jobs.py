"""Processes that call fake CUDA and NCCL libraries, and the compiler for these libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.compiler import compile_c

FAKES = Path(__file__).parent / "fake_gpu"


def require_bpf() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to load probes")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("needs a kernel with BTF")


def compile_library(source: Path, target: Path, *options: str) -> Path:
    """Compile a library whose stacks can be unwound by frame pointers."""
    usual = ("-O1", "-fno-omit-frame-pointer", "-shared", "-fPIC")
    return compile_c(source, target, *usual, *options)


class Job:
    """One process under test."""

    def __init__(self, folder: Path, *prefix: str) -> None:
        command = [*prefix, sys.executable, "-I", str(FAKES / "job.py"), str(folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.answer() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, code: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def do(self, code: str) -> str:
        self.send(code)
        answer = self.answer()
        assert answer, "the job died"
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
