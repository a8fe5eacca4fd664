"""Every example runs as its docstring says."""

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_processor_in_a_pipeline_of_ones_own() -> None:
    """F055."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "own_pipeline.py")],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=True,
    )
    assert done.stdout == "threshold 0.890348, quorum True\nbelow: gpu-03\n"


def test_a_run_of_another_tool_is_linked_to_the_page_of_its_job() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "link_run.py")],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=True,
    )
    assert done.stdout == (
        "ingero: [who is slow in this job](https://fleet.example.com:8080/job/llm-7b)\n"
    )
