"""`ingero run` adds its variables and changes nothing else."""

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.support.waiting import PATIENCE_S

INGERO = [sys.executable, "-m", "ingero", "run"]
PLUGIN = f"/{platform.machine()}/libnccl-profiler-ingero.so"
CLEAN = {"PATH": os.environ["PATH"], "MARK": "a b\nc"}


def ingero(*args, env=None, **kwargs):
    return subprocess.run(
        [*INGERO, *args],
        env=CLEAN | (env or {}),
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        **kwargs,
    )


def test_the_command_gets_one_more_variable_and_nothing_else():
    plain = subprocess.check_output(["env", "-0"], env=CLEAN, text=True)
    done = ingero("--", "env", "-0")
    added = set(done.stdout.split("\0")) - set(plain.split("\0"))
    assert set(plain.split("\0")) <= set(done.stdout.split("\0"))
    assert [entry.split("=")[0] for entry in added] == ["NCCL_PROFILER_PLUGIN"]
    assert next(iter(added)).endswith(PLUGIN)
    assert done.stderr == ""


@pytest.mark.parametrize("keep", [False, True])
def test_signals_and_exit_status_are_the_commands(tmp_path, keep):
    options = ["--keep-rings", str(tmp_path / "kept")] if keep else []
    assert ingero(*options, "--", "sh", "-c", "exit 37").returncode == 37
    script = "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [*INGERO, *options, "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S)[0] == "got\n"
    assert process.returncode == 5
    died = ingero(*options, "--", "sh", "-c", "kill -9 $$").returncode
    assert died == (137 if keep else -9)
    assert ingero(*options, "--", "/nowhere/command").returncode == 127
    assert ingero(*options, "--", "/etc/passwd").returncode == 126


@pytest.mark.parametrize("keep", [False, True])
def test_the_command_inherits_no_ignored_signals(tmp_path, keep):
    options = ["--keep-rings", str(tmp_path)] if keep else []
    ask = "grep -E '^Sig(Ign|Blk)' /proc/self/status"
    plain = subprocess.check_output(["sh", "-c", ask], env=CLEAN, text=True)
    done = ingero(*options, "--", "sh", "-c", ask)
    assert _masks(done.stdout) == _masks(plain)


def _masks(status: str) -> list[int]:
    """Return signal masks without 32 and 33, which the C library's spawn may leave ignored."""
    return [int(line.split()[1], 16) & ~(0b11 << 31) for line in status.splitlines()]


def test_your_own_plugin_stays(tmp_path):
    done = ingero(
        "--", "sh", "-c", "echo $NCCL_PROFILER_PLUGIN", env={"NCCL_PROFILER_PLUGIN": "/mine.so"}
    )
    assert done.stdout == "/mine.so\n"
    assert "not timed by Ingero" in done.stderr


def test_flight_recorder_settings_come_when_asked(tmp_path):
    done = ingero("--flight-recorder", "--", "env", env={"TMPDIR": str(tmp_path)})
    values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    prefix = Path(values["TORCH_FR_DUMP_TEMP_FILE"])
    assert prefix.parent.stat().st_mode & 0o777 == 0o700
    assert values["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == str(prefix)
    assert values["TORCH_FR_BUFFER_SIZE"] == "2000"


def test_variables_are_printed_for_every_launcher():
    wanted = json.loads(ingero("--json", "--flight-recorder").stdout)
    assert wanted["NCCL_PROFILER_PLUGIN"].endswith(PLUGIN)
    shell = ingero("--print-env").stdout
    sourced = subprocess.check_output(["sh", "-c", shell + "echo $NCCL_PROFILER_PLUGIN"], text=True)
    assert sourced.strip() == wanted["NCCL_PROFILER_PLUGIN"]
    assert ingero("--print-env", "--format", "slurm").stdout.startswith(
        "#SBATCH --export=ALL,NCCL_PROFILER_PLUGIN=/"
    )
    pod = yaml.safe_load(ingero("--print-env", "--format", "k8s").stdout)
    assert pod["env"] == [{"name": "NCCL_PROFILER_PLUGIN", "value": wanted["NCCL_PROFILER_PLUGIN"]}]
    assert pod["volumes"][0]["hostPath"]["path"] == str(Path(wanted["NCCL_PROFILER_PLUGIN"]).parent)
    docker = shlex.split(ingero("--print-env", "--format", "docker").stdout)
    assert f"--env=NCCL_PROFILER_PLUGIN={wanted['NCCL_PROFILER_PLUGIN']}" in docker


def test_no_command_says_what_to_write():
    done = ingero()
    assert done.returncode == 2
    assert "ingero run -- python train.py" in done.stderr


def test_records_that_cannot_be_kept_do_not_hide_the_exit_status(tmp_path):
    (tmp_path / "ring").mkdir()
    done = ingero(
        "--keep-rings",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        'echo x > "$INGERO_NCCL_RING_DIR/ring"; exit 7',
    )
    assert done.returncode == 7
    assert f"not all records could be kept in {tmp_path}: Is a directory" in done.stderr
