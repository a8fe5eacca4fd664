"""Every command of the quickstarts is executed, as far as that is possible on one machine (F064).

`helm` renders, `kubectl` is checked for the files and options it names, `ingero` runs for real, and
what needs root, containers or systemd is read by its own parser or by the tests that run it.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from tests.support.commands import commands_by_name
from tests.support.quickstarts import ROOT, commands

PAGES = ("k8s", "binary", "docker")
PEERS = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers") / "bin"


def plain(words: list[str]) -> list[str]:
    """Return a command without `sudo` and without the variables that `env` sets."""
    wrapped = ("sudo", "env")
    return plain(words[1:]) if words[0] in wrapped or "=" in words[0] else words


def parse_own(words: list[str]) -> None:
    """Parse a command line of ours as far as its options and arguments go."""
    first = 2 if words[0] == "ingero" else 1
    command: click.Command = commands_by_name()[" ".join(words[:first])]
    rest = words[first:]
    while isinstance(command, click.Group):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[0], rest, resilient_parsing=False)


@pytest.mark.parametrize("page", PAGES)
def test_f064_every_page_has_commands_and_they_are_known(page: str) -> None:
    found = {plain(words)[0] for words in commands(page)}
    known = {"helm", "kubectl", "podman", "ingero", "ingero-fleet", "dpkg", "systemctl", "python3"}
    assert found <= known | {"make", "curl", "/opt/ingero/bin/pip"}
    assert len(commands(page)) >= 5


def test_f064_kubernetes_commands_render() -> None:
    helm = shutil.which("helm", path=f"{PEERS}:{os.environ['PATH']}")
    if helm is None:
        pytest.skip("helm is not installed: `make peers-charts`")
    for words in commands("k8s"):
        if words[0] == "helm":
            dry = ["template", *words[2:]]
            dry = [word for word in dry if word not in ("--create-namespace", "--reuse-values")]
            done = subprocess.run(
                [helm, *dry], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            assert list(yaml.safe_load_all(done.stdout))
        elif words[1] == "apply":
            assert list(yaml.safe_load_all((ROOT / words[3]).read_text()))
        else:
            inner = shlex.split(words[-1].split(" ", 1)[1])
            parse_own(inner[inner.index("ingero") :])


def test_f064_commands_without_containers_run(tmp_path: Path) -> None:
    """Fleet is made in a folder of its own; what needs root is parsed."""
    for line in commands("binary"):
        words = plain(line)
        if words[:3] == ["ingero", "fleet", "init"]:
            words = [word.replace("/etc/ingero-fleet", str(tmp_path / "fleet")) for word in words]
            command = [sys.executable, "-m", *words]
            subprocess.run(
                command, check=True, capture_output=True, env=os.environ | {"HOME": str(tmp_path)}
            )
        elif words[0] == "ingero-fleet":
            check = ["-m", "ingero.cli.commands.services.fleet", "--check", "--config"]
            configuration = str(tmp_path / "fleet" / "fleet-config.yaml")
            subprocess.run([sys.executable, *check, configuration], check=True, capture_output=True)
        elif words[0] == "ingero":
            parse_own(words)


def test_f064_commands_in_containers_parse() -> None:
    parsed = [
        parse_own(words[words.index(name) :])
        for words in commands("docker")
        for name in ("ingero", "ingero-echo")
        if words[0] == "podman" and name in words
    ]
    assert len(parsed) >= 2
