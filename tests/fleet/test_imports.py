"""F061: what Fleet loads at its start, because every module costs memory for as long as it runs.

`make bench-fleet-memory` measures the memory itself.
"""

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

pytestmark = pytest.mark.e2e
ANY_PORT = [
    part
    for name in ("http", "agent", "admin", "health", "metrics", "prometheus")
    for part in (f"--{name}", "0")
]
# packages outside of the standard library, by what they are needed for
ALLOWED = {
    "_distutils_hack",  # of setuptools, where it is installed
    *("ingero", "numpy", "click", "yaml", "msgspec", "uvloop"),
    *("uvicorn", "httptools", "starlette", "anyio", "python_multipart", "typing_extensions"),
}
# parts of ours that only some Fleets need: to forward, for gRPC, for ranks
LATER = (
    "ingero.fleet.backends",
    "ingero.transport.otlp.server_grpc",
    "ingero.transport.otlp.client",
    "ingero.contract.otlp.messages",
    "ingero.core.verdict.engine",
    "ingero.fleet.cluster_verdicts",
)


def loaded_at_start(*flags: str) -> set[str]:
    """Every module that a Fleet has imported when it says that it is up."""
    command = [sys.executable, "-X", "importtime", "-m", "ingero.cli.commands.services.fleet"]
    process = subprocess.Popen(
        [*command, "--json", *ANY_PORT, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert json.loads(line)["addresses"]["http"], said[-2000:]
    return set(re.findall(r"^import time: .*\| +(\S+)$", said, re.MULTILINE))


def test_a_fleet_without_grpc_loads_only_what_it_needs_for_health() -> None:
    loaded = loaded_at_start("--grpc", "off")
    packages = {name.split(".")[0] for name in loaded}
    installed = {name for name in packages if name in packages_distributions()}
    assert installed <= ALLOWED
    assert {"numpy", "uvicorn", "ingero"} <= installed, "the list of imports was read"
    assert [name for name in LATER if name in loaded] == []


def test_grpc_is_loaded_where_it_is_served_and_no_client_with_it() -> None:
    loaded = loaded_at_start("--grpc", "0")
    assert "grpc" in loaded
    assert not {"aiohttp", "ingero.fleet.backends", "ingero.core.verdict.engine"} & loaded
