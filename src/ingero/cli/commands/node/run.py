"""`ingero run`: start a job with the environment that lets NCCL time every collective."""

import json
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

import ingero.agent.nccl
from ingero.children.job import become, run_job
from ingero.cli.show.table import printable
from ingero.contract.names import RING_FOLDER, RING_FOLDER_VARIABLE
from ingero.errors import Unavailable
from ingero.files import copy_file

LIBRARY = "libnccl-profiler-ingero.so"
PLUGIN_VARIABLE = "NCCL_PROFILER_PLUGIN"
MAX_PLUGIN_PATH = 254  # NCCL truncates longer paths
RECORDER_ENTRIES = "2000"
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit statuses of a shell


@click.command()
@click.option(
    "--flight-recorder",
    is_flag=True,
    help="Also let PyTorch keep recent collectives for a dump on request.",
)
@click.option(
    "--keep-rings",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Save the records of the ended job in DIR: the last 16384 of every rank.",
)
@click.option("--print-env", is_flag=True, help="Print the variables instead of starting anything.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["shell", "slurm", "k8s", "docker"]),
    default="shell",
    show_default=True,
    help="Format of the printed variables.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the variables as a JSON object.")
@click.argument("args", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
def command(
    flight_recorder: bool,
    keep_rings: Path | None,
    print_env: bool,
    form: str,
    as_json: bool,
    args: tuple[str, ...],
) -> int:
    """Start a job whose collectives are timed on the GPU.

    NCCL times every collective, and the agent reads the result. The command gets one more
    environment variable, NCCL_PROFILER_PLUGIN; its code, output, signals and exit status are its
    own. A variable that you have set yourself is kept. Write -- before the command.

    --print-env prints the variables for a launcher of your own: docs/how-to/nccl-plugin.md.

    \b
    Examples:
      ingero run -- torchrun --nproc-per-node 8 train.py
      ingero run --flight-recorder -- python train.py
      ingero run --print-env >> job.env
      ingero run --print-env --format k8s
    """
    wanted = wanted_environment(flight_recorder=flight_recorder)
    if print_env or as_json:
        click.echo(json.dumps(wanted, indent=2) if as_json else FORMATS[form](wanted))
        return 0
    if not args:
        raise click.UsageError(
            "no command given; `ingero run -- python train.py` starts one, "
            "--print-env prints the variables"
        )
    environment = merged_environment(original_environment(), wanted)
    if flight_recorder:
        Path(_recorder_prefix()).parent.mkdir(mode=0o700, exist_ok=True)
    if keep_rings is not None:
        return run_and_keep(args, environment, keep_rings)
    try:
        become(args, environment)
    except OSError as error:
        return _not_started(args[0], error)


def plugin_path() -> Path:
    """Return the plugin for this machine; raises Unavailable when there is none."""
    library = Path(str(ingero.agent.nccl.__path__[0])) / platform.machine() / LIBRARY
    if not library.is_file():
        raise Unavailable(
            f"no NCCL plugin for {platform.machine()} in this installation; "
            "collectives are not timed"
        )
    if len(str(library)) > MAX_PLUGIN_PATH:
        raise Unavailable(
            f"{library} is longer than the {MAX_PLUGIN_PATH} characters that NCCL reads; "
            "install it elsewhere"
        )
    return library


def wanted_environment(*, flight_recorder: bool) -> dict[str, str]:
    """Return the variables that a job needs."""
    wanted = {PLUGIN_VARIABLE: str(plugin_path())}
    if flight_recorder:
        prefix = _recorder_prefix()
        wanted |= {
            "TORCH_FR_BUFFER_SIZE": RECORDER_ENTRIES,
            "TORCH_NCCL_TRACE_BUFFER_SIZE": RECORDER_ENTRIES,  # the name before PyTorch 2.8
            "TORCH_NCCL_ENABLE_TIMING": "1",
            "TORCH_FR_DUMP_TEMP_FILE": prefix,
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": prefix,
        }
    return wanted


def original_environment() -> dict[str, str]:
    """Return the variables of this process as it was started, without those that Python adds."""
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def merged_environment(own: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Add the wanted variables; a different value that is already set stays, with a remark."""
    for name in wanted:
        if own.get(name, wanted[name]) != wanted[name]:
            cost = (
                "collectives are not timed by Ingero"
                if name == PLUGIN_VARIABLE
                else "its value is kept"
            )
            click.echo(f"ingero run: {name} is already set to {own[name]!r}; {cost}", err=True)
    return {**wanted, **own}


def run_and_keep(command: tuple[str, ...], environment: dict[str, str], target: Path) -> int:
    """Run the command as a child, then copy its rings from shared memory into `target`."""
    target.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ingero-run-", dir=RING_FOLDER))
    try:
        try:
            status = run_job(command, environment | {RING_FOLDER_VARIABLE: str(folder)})
        except OSError as error:
            status = _not_started(command[0], error)
        try:
            for ring in sorted(folder.iterdir()):
                copy_file(ring, target / ring.name)
        except OSError as error:  # the job's exit status matters more than its records
            click.echo(
                f"ingero run: not all records could be kept in {target}: {error.strerror}", err=True
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _not_started(name: str, error: OSError) -> int:
    click.echo(f"ingero run: {printable(name)}: {error.strerror}", err=True)
    return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _recorder_prefix() -> str:
    return f"{tempfile.gettempdir()}/ingero-flight-recorder-{os.getuid()}/rank-"


def _shell(wanted: Mapping[str, str]) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in wanted.items()]
    if "TORCH_FR_DUMP_TEMP_FILE" in wanted:
        folder = shlex.quote(str(Path(wanted["TORCH_FR_DUMP_TEMP_FILE"]).parent))
        lines.insert(0, f"mkdir -p -m 700 {folder}")
    return "\n".join(lines)


def _slurm(wanted: Mapping[str, str]) -> str:
    return "#SBATCH --export=ALL," + ",".join(f"{name}={value}" for name, value in wanted.items())


def _k8s(wanted: Mapping[str, str]) -> str:
    folder = json.dumps(str(Path(wanted[PLUGIN_VARIABLE]).parent))
    lines = ["# container", "env:"]
    for name, value in wanted.items():
        lines += [f"  - name: {name}", f"    value: {json.dumps(value)}"]
    lines += [
        "volumeMounts:",
        "  - name: ingero-nccl",
        f"    mountPath: {folder}",
        "    readOnly: true",
    ]
    lines += [
        "# pod",
        "volumes:",
        "  - name: ingero-nccl",
        "    hostPath:",
        f"      path: {folder}",
    ]
    return "\n".join(lines)


def _docker(wanted: Mapping[str, str]) -> str:
    folder = Path(wanted[PLUGIN_VARIABLE]).parent
    options = [
        f"--volume={folder}:{folder}:ro",
        *(f"--env={name}={value}" for name, value in wanted.items()),
    ]
    return " ".join(shlex.quote(option) for option in options)


FORMATS = {"shell": _shell, "slurm": _slurm, "k8s": _k8s, "docker": _docker}
