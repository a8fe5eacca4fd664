"""The output of another program, bounded in time and size."""

import contextlib
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Final

from ingero.errors import Unavailable

_READ_BYTES: Final = 4096


def output_of(command: list[str], limit_bytes: int, timeout_s: float) -> str:
    """Return what a program prints; raises Unavailable when it takes longer, prints more or fails.

    A driver can keep a process from ending, so the process is not waited for after it was killed.
    """
    name = Path(command[0]).name
    deadline_s = time.monotonic() + timeout_s
    output = b""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise Unavailable(f"{name} does not answer: {error}") from None
    assert process.stdout is not None
    try:
        pipe, ready = process.stdout.fileno(), select.poll()
        ready.register(pipe, select.POLLIN)
        while len(output) <= limit_bytes:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not ready.poll(left_s * 1000):
                raise Unavailable(f"{name} does not answer within {timeout_s:g} s")
            data = os.read(pipe, _READ_BYTES)
            if not data:
                break
            output += data
        else:
            raise Unavailable(f"{name} printed more than expected")
        status = process.wait(max(deadline_s - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name} does not end within {timeout_s:g} s") from None
    finally:
        process.stdout.close()
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    if status != 0:
        raise Unavailable(f"{name} failed with status {status}")
    return output.decode(errors="replace")
