"""`ingero load matmul` without a GPU: the stand-in library and the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import BIN

from ingero.agent.host.shared_library import ARCHITECTURES, built_digest
from ingero.agent.load.build import STAND_IN
from ingero.agent.load.matmul import PRODUCTS_PER_STEP, stand_in_matmul
from ingero.errors import Unavailable


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_shipped_library_is_built_from_these_sources(architecture: str) -> None:
    """Stale? `make probes` builds it again."""
    assert built_digest(STAND_IN.path(architecture)) == STAND_IN.source_digest()


def test_other_machines_have_no_stand_in(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no stand-in for"):
        stand_in_matmul(64, tmp_path)


def test_the_load_runs_for_its_time_and_says_on_what() -> None:
    """In a process of its own, because it loads a library called libcudart."""
    command = [str(BIN / "ingero"), "load", "matmul", "--stand-in", "--duration", "300ms", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["device"] == "a stand-in for the CUDA runtime, because --stand-in was given"
    assert said["products"] >= PRODUCTS_PER_STEP and said["products"] % PRODUCTS_PER_STEP == 0
    assert said["seconds"] >= 0.3
    assert "multiplying 4096 x 4096 on a stand-in" in done.stderr


def test_kernels_of_the_stand_in_take_time_one_after_the_other() -> None:
    script = (
        "import time; from ingero.agent.load.matmul import stand_in_matmul as load\n"
        "_, step = load(64); step(); began = time.monotonic(); step()\n"
        "print(time.monotonic() - began)"
    )
    took = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert float(took.stdout) >= 0.009, "20 kernels of half a millisecond"
