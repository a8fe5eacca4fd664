"""The image: built without a daemon, the same twice, and all services run from it read-only (F056).

`make e2e-image` runs it; it needs root, buildah, podman and runc.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from release.image import EXTRAS, build, import_base, prepare
from release.wheels import build_wheel
from tests.support.quickstarts import commands

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(2400),  # two builds
    pytest.mark.skipif(
        os.environ.get("INGERO_TEST_IMAGE") != "1", reason="builds an image: `make e2e-image`"
    ),
]
TAG = "localhost/ingero:test"
ROOT = Path(__file__).parents[2]
BASE = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers") / "base.tar"
RUN = ("podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", "run", "--rm", "--read-only")
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--network", "host")
NAMES = ("fleet", "agent", "echo")
SAFE = ("--cap-drop=all", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp")


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    for program in ("buildah", "podman", "runc", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: `make peers-images`")
    subprocess.run([ROOT / "release" / "base.sh", BASE], check=True)
    folder = tmp_path_factory.mktemp("image")
    built = os.environ.get("INGERO_TEST_DIST")
    wheel = next(Path(built).glob("*x86_64.whl")) if built else build_wheel(folder / "wheel")
    found = []
    for name in ("first", "second"):
        prepare(folder / name, wheel, BASE, EXTRAS)
        found.append(build(folder / name, import_base(BASE), TAG))
    return found[0], found[1]


def test_the_image_holds_what_the_charts_can_turn_on(digests: tuple[str, str]) -> None:
    script = "import apprise, duckdb, mcp, redis, uvloop"
    command = [*RUN, *LIMITS, *SAFE, TAG, "/opt/ingero/bin/python3", "-c", script]
    subprocess.run(command, check=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_two_builds_have_the_same_digest(digests: tuple[str, str]) -> None:
    assert digests[0] == digests[1]


def test_the_image_is_small_and_not_for_root(digests: tuple[str, str]) -> None:
    shown = subprocess.run(["podman", "inspect", TAG], check=True, capture_output=True, text=True)
    (about,) = json.loads(shown.stdout)
    assert about["Size"] < 350e6
    assert about["Config"]["User"] == "65532:65532"


def test_the_bill_lists_every_package(digests: tuple[str, str]) -> None:
    script = (
        "import json,importlib.metadata as m;"
        "bill=json.load(open('/usr/share/doc/ingero/ingero.cdx.json'));"
        "names={c['name'] for c in bill['components']};"
        "own={d.name.lower().replace('_','-') for d in m.distributions()};"
        "deb={l.split()[1] for l in open('/var/lib/dpkg/status') if l.startswith('Package: ')};"
        "print(sorted((own|deb)-names))"
    )
    command = [*RUN, *LIMITS, *SAFE, TAG, "/opt/ingero/bin/python3", "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@contextmanager
def running(*command: str, health: int) -> Iterator[subprocess.Popen[bytes]]:
    began_s = time.monotonic()
    with subprocess.Popen([*RUN, *LIMITS, *SAFE, *command]) as process:
        end_s = began_s + 60  # 5 s on a quiet machine
        while True:
            try:
                url = f"http://127.0.0.1:{health}/healthz"
                assert urllib.request.urlopen(url, timeout=5).status == 200
                print(f"healthy after {time.monotonic() - began_s:.1f} s")
                break
            except OSError:
                assert time.monotonic() < end_s, "no answer"
                assert process.poll() is None, "it ended"
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_f056_fleet_answers_and_stops_when_told(digests: tuple[str, str]) -> None:
    ports = [f"--{name}=127.0.0.1:{free_port()}" for name in ("grpc", "http", "agent", "metrics")]
    ports += [f"--{name}=127.0.0.1:{free_port()}" for name in ("admin", "prometheus")]
    health = free_port()
    config = ("--config", "/etc/ingero-fleet/config.yaml", f"--health=127.0.0.1:{health}")
    with running(TAG, "ingero-fleet", *config, *ports, health=health):
        pass


def test_f056_echo_answers_and_stops_when_told(digests: tuple[str, str], tmp_path: Path) -> None:
    names = ("otlp", "otlp-http", "mcp")
    ports = [f"--{name}-addr=127.0.0.1:{free_port()}" for name in names]
    health = free_port()
    data = ("--volume", f"{tmp_path}:/var/lib/ingero:U")  # U: it belongs to the user of the image
    command = ("ingero-echo", "serve", "--create-certificate", "--db-path")
    where = ("/var/lib/ingero/echo.db", f"--health-addr=127.0.0.1:{health}")
    with running(*data, TAG, *command, *where, *ports, health=health):
        pass


def test_the_agent_starts_from_the_same_image(digests: tuple[str, str]) -> None:
    data = ("--tmpfs", "/var/lib/ingero", "--tmpfs", "/run/ingero", "--pid=host", "--user", "0")
    command = [*RUN, *LIMITS, *SAFE, *data, TAG, "timeout", "-s", "TERM", "10", "ingero", "agent"]
    done = subprocess.run(
        [*command, "--socket", "/run/ingero/agent.sock"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "health at /run/ingero/agent.sock" in done.stdout, done.stdout + done.stderr


def test_f064_the_quickstart_works_as_it_is_printed(
    digests: tuple[str, str], tmp_path: Path
) -> None:
    """Every command of docs/quickstart-docker.md; names, ports and folders are those of a test."""
    flags = ["--runtime", "runc", "--cgroup-manager=cgroupfs"]
    ports: dict[str, str] = {}
    done = []
    try:
        for line in commands("docker"):
            befores = ["", *line]
            words = [
                f"ingero-test-{word}"
                if word in NAMES and (before in ("--name", "exec") or "rm" in line)
                else _of_this_test(word, tmp_path, ports)
                for before, word in zip(befores, line, strict=False)
            ]
            if words[0] == "make":  # the fixture has built it in the same way
                continue
            if words[0] == "podman":
                limits = LIMITS[:4] if words[1] == "run" else ()
                words = ["podman", *flags, words[1], *limits, *words[2:]]
            asked = "status" in words
            end_s = time.monotonic() + 60
            while (ran := _run(words)).returncode not in ((0, 3) if asked else (0,)):
                assert words[0] == "curl" and time.monotonic() < end_s, ran.stdout + ran.stderr
            done.append(words)
            if "run" in words:
                _wait_until_up(words[words.index("--name") + 1])
    finally:
        _run(["podman", *flags, "rm", "--force", "--ignore", *(f"ingero-test-{n}" for n in NAMES)])
        _run(["podman", "volume", "rm", "--force", "ingero-test-echo"])
    assert [words[0] for words in done].count("podman") == 5
    assert any("status" in words for words in done)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _of_this_test(word: str, folder: Path, ports: dict[str, str]) -> str:
    if word.startswith("localhost/ingero:"):
        return TAG
    if re.fullmatch(r"\d+:\d+", word):
        outside, _, within = word.partition(":")
        ports[outside] = str(free_port())
        return f"{ports[outside]}:{within}"
    if word.startswith("http://127.0.0.1:"):
        port = word.split(":")[2].split("/", maxsplit=1)[0]
        return word.replace(port, ports[port])
    if ":" in word and word.startswith(("/var/lib/ingero:", "/etc/ingero:")):
        place = folder / word.split(":", maxsplit=1)[0].strip("/").replace("/", "-")
        place.mkdir(exist_ok=True)
        return f"{place}{word[word.index(':') :]}"
    return f"ingero-test-{word}" if word.startswith("echo:/") else word


def _wait_until_up(name: str) -> None:
    """Wait for the line that a service prints when it is ready."""
    end_s = time.monotonic() + 60
    while True:
        log = _run(["podman", "logs", name])
        if re.search(r" is up: |health at ", log.stdout):
            return
        assert time.monotonic() < end_s, log.stdout + log.stderr
