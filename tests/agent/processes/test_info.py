"""What /proc says about traced processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.agent.processes.info import ProcessCache, ProcessInfo, parse_environ, read_process
from ingero.core.chains.neighbours import Host


def test_rank_comes_from_the_environment_and_absent_is_not_zero() -> None:
    """F134."""
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    environ = os.environ | {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "x"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    info = read_process(process.pid)
    process.communicate("")
    assert (info.rank, info.local_rank, info.world_size) == (0, None, 8)
    assert info.start_time > 0
    assert info.name.startswith("python")


def test_launchers_other_than_torchrun_are_supported_and_the_first_variable_counts(
    tmp_path: Path,
) -> None:
    """F134: the plugin inside the process reads the same names: one rank must not be two."""
    folder = tmp_path / "9"
    folder.mkdir()

    def ranks_of(*environ: str) -> tuple[int | None, int | None, int | None, str | None]:
        (folder / "environ").write_text("\0".join(environ))
        info = read_process(9, tmp_path)
        return info.rank, info.local_rank, info.world_size, info.job

    slurm = ("SLURM_PROCID=9", "SLURM_LOCALID=1", "SLURM_NTASKS=16", "SLURM_JOB_ID=4711")
    assert ranks_of(*slurm) == (9, 1, 16, "4711")
    assert ranks_of(*slurm, "RANK=0", "WORLD_SIZE=64", "INGERO_JOB_ID=mine") == (0, 1, 64, "mine")
    assert ranks_of("OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8") == (3, None, 8, None)
    assert ranks_of("RANK=-1", "PMI_RANK=2", "PMI_SIZE=4", "TORCHELASTIC_RUN_ID=none") == (
        2,
        None,
        4,
        None,
    )


def test_a_process_that_is_gone_is_nothing_and_no_error() -> None:
    info = read_process(2**22 - 1)
    assert (info.name, info.rank, info.start_time) == ("", None, 0)


def test_environment_block() -> None:
    assert parse_environ(b"A=1\0B=x=y\0bad\0A=2\0\xff=\xff\0") == {
        "A": "1",
        "B": "x=y",
        "\ufffd": "\ufffd",
    }


def test_a_pid_used_again_is_read_again_and_a_dead_one_keeps_its_name() -> None:
    answers = [ProcessInfo(7, 1, "old", rank=3), ProcessInfo(7, 0, ""), ProcessInfo(7, 9, "new")]
    processes = ProcessCache(lambda _: answers.pop(0))
    assert processes.get(7).name == processes.get(7).name == "old"
    processes.mark_stale(7)
    assert processes.get(7).rank == 3, "gone: late events still belong to what we knew"
    processes.mark_stale(7)
    assert processes.get(7).name == "new"
    assert [info.name for info in processes.fresh] == ["old", "new"]
    assert processes.names() == {7: "new"}


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        (["-P", "-m", "ingero.children.follow"], True),
        (["-m", "ingero", "trace"], True),
        (["/usr/local/bin/ingero-fleet"], True),
        (["-m", "ingerox"], False),
        (["train.py", "-m", "ingero"], False),
        (["-c", "ingero"], False),
    ],
)
def test_python_that_runs_ingero_is_left_alone_by_advice(
    tmp_path: Path, command: list[str], is_ours: bool
) -> None:
    """Its name is only `python`, so that advice would lower the priority of the recorder."""
    folder = tmp_path / "4711"
    folder.mkdir()
    (folder / "comm").write_text("python3\n")
    (folder / "cmdline").write_bytes(
        b"".join(f"{word}\0".encode() for word in ["/usr/bin/python3", *command])
    )
    processes = ProcessCache(lambda pid: read_process(pid, tmp_path))
    processes.get(4711)
    assert Host(8, neighbours=processes.neighbours()).may_change(4711) is not is_ours
