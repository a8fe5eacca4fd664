"""Fleet as a process of its own, and pushes to it."""

import contextlib
import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.support.pushes import protobuf
from tests.support.waiting import PATIENCE_S

from ingero.contract.names import PROTOBUF_TYPE

LISTENERS = ("grpc", "http", "agent", "admin", "health", "metrics")
ANY = tuple(word for name in LISTENERS for word in (f"--{name}", "0"))  # ports that are free


@contextlib.contextmanager
def fleet(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    with fleet_started_by("-m", "ingero.cli.commands.services.fleet", *arguments) as started:
        yield started


@contextlib.contextmanager
def fleet_started_by(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run Python with these arguments; what it starts is a Fleet on free ports."""
    command = [sys.executable, *arguments, "--json", *ANY]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield process, json.loads(line)["addresses"]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def push(
    address: str,
    node: str,
    score: float,
    scheme: str = "http",
    tls: ssl.SSLContext | None = None,
    token: str = "",
) -> tuple[int, Any]:
    headers = {"Content-Type": PROTOBUF_TYPE} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    request = urllib.request.Request(
        f"{scheme}://{address}/v1/metrics?cluster_id=train",
        protobuf(node, score, sent_ns=time.time_ns()),
        headers,
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=tls) as reply:
            return reply.status, reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers
