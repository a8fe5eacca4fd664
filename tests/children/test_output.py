"""Programs whose output is read: they end in time and within bounds, or are an error."""

from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.children.output import output_of
from ingero.errors import Unavailable


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 1, 2", None),
        ("exit 3", "failed with status 3"),
        ("exec yes", "printed more than expected"),
        ("exec sleep 60", "does not answer within 0.5 s"),
        ("exec >&-; exec sleep 60", "does not end within 5 s"),
    ],
)
def test_a_program_gets_bounded_time_and_memory_must_49(
    tmp_path: Path, script: str, complaint: str | None
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o700)
    limit_s = float(complaint.split()[-2]) if complaint and "within" in complaint else PATIENCE_S
    if complaint is None:
        assert output_of([str(tool)], 100, limit_s) == "1, 2\n"
        return
    with pytest.raises(Unavailable, match=complaint):
        output_of([str(tool)], 100, limit_s)
