"""deb and rpm packages, by nfpm: `ingero` for a node or Fleet, and `ingero-echo` on top of it."""

import json
import os
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from release import site
from release.manuals import write_completions, write_manuals
from release.tree import ROOT, build_environment, commit_time

HOME = "/usr/lib/ingero"
PYTHON = "/usr/bin/python3.11"  # what the compiled parts were built for
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
FORMATS = ("deb", "rpm")
COMMANDS = ("ingero", "ingero-fleet", "straggler-sink")
ECHO_COMMANDS = ("ingero-echo", "echo-stress")


def nfpm() -> Path | None:
    """Return nfpm from the PATH or from where `make peers-charts` puts it."""
    cache = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers")
    found = shutil.which("nfpm", path=f"{os.environ['PATH']}:{cache / 'bin'}")
    return Path(found) if found else None


def build_packages(wheel: Path, version: str, out: Path, architecture: str) -> list[Path]:
    """Build both packages in both formats for one architecture."""
    program = nfpm()
    if program is None:
        raise SystemExit("nfpm is missing: `make peers-charts` builds it")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for part, extra in (("base", "[fast]"), ("whole", "[echo]")):
            site.install(wheel, extra, folder / part, HOME, architecture)
        _remove_shared(folder / "base", folder / "whole")
        for part in ("base", "whole"):
            site.compile_all(folder / part, HOME)
        site.add_python(folder / "base", PYTHON)
        write_manuals(folder / "man")
        write_completions(folder / "completions")
        made = []
        for recipe in (_base_recipe(folder), _echo_recipe(folder, version)):
            recipe |= {"version": version, "arch": MACHINES[architecture]}
            made += [_packed(program, recipe, kind, folder, out) for kind in FORMATS]
        return made


def _remove_shared(base: Path, whole: Path) -> None:
    """Remove from `whole` what `base` has already."""
    for path in sorted(whole.rglob("*"), reverse=True):
        if path.is_file() and (base / path.relative_to(whole)).exists():
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _base_recipe(folder: Path) -> dict[str, object]:
    deploy = ROOT / "deploy"
    contents = [
        _tree(folder / "base", HOME),
        _tree(folder / "man" / "base", "/usr/share/man/man1"),
        *_completions(folder / "completions"),
        *(_link(f"{HOME}/bin/{name}", f"/usr/bin/{name}") for name in COMMANDS),
        *(
            _file(deploy / f"systemd/ingero-{unit}.service", "/usr/lib/systemd/system/", 0o644)
            for unit in ("agent", "fleet")
        ),
        _file(deploy / "systemd/ingero.sysusers", "/usr/lib/sysusers.d/ingero.conf", 0o644),
        _file(deploy / "systemd/ingero.tmpfiles", "/usr/lib/tmpfiles.d/ingero.conf", 0o644),
        _file(
            deploy / "packages/ingero.yaml", "/etc/ingero/ingero.yaml", 0o644, "config|noreplace"
        ),
        _file(
            ROOT / "configs/fleet-config.yaml",
            "/etc/ingero-fleet/config.yaml",
            0o640,
            "config|noreplace",
        ),
        _file(ROOT / "LICENSE", "/usr/share/doc/ingero/copyright", 0o644),
    ]
    scripts = {
        step: str(deploy / "packages" / f"{step}.sh")
        for step in ("postinstall", "preremove", "postremove")
    }
    return {
        **_about("ingero", "Names the slow GPU node, rank and collective of a training job"),
        "contents": contents,
        "scripts": scripts,
        "overrides": {
            "deb": {"depends": ["python3 (>= 3.11)", "python3 (<< 3.12)", "libstdc++6"]},
            "rpm": {"depends": ["python3.11", "libstdc++"]},
        },
    }


def _echo_recipe(folder: Path, version: str) -> dict[str, object]:
    deploy = ROOT / "deploy"
    contents = [
        _tree(folder / "whole", HOME),
        _tree(folder / "man" / "echo", "/usr/share/man/man1"),
        *(_link(f"{HOME}/bin/{name}", f"/usr/bin/{name}") for name in ECHO_COMMANDS),
        _file(deploy / "systemd/ingero-echo.service", "/usr/lib/systemd/system/", 0o644),
        _file(
            deploy / "packages/echo.yaml", "/etc/ingero-echo/config.yaml", 0o640, "config|noreplace"
        ),
        _file(ROOT / "LICENSE", "/usr/share/doc/ingero-echo/copyright", 0o644),
    ]
    return {
        **_about(
            "ingero-echo", "Stores the events of a GPU cluster and answers questions about them"
        ),
        "contents": contents,
        "scripts": {"postinstall": str(deploy / "packages/postinstall.sh")},
        "overrides": {
            "deb": {"depends": [f"ingero (= {version})"]},
            "rpm": {"depends": [f"ingero = {version}"]},
        },
    }


def _about(name: str, description: str) -> dict[str, object]:
    return {
        "name": name,
        "platform": "linux",
        "section": "admin",
        "priority": "optional",
        "maintainer": "The Ingero maintainers <maintainers@ingero.invalid>",
        "description": description,
        "license": "Apache-2.0",
        "mtime": f"{_stamp()}",
        "rpm": {"buildhost": "reproducible"},
    }


def _stamp() -> str:
    return datetime.fromtimestamp(commit_time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _tree(source: Path, target: str) -> dict[str, object]:
    return {"src": str(source), "dst": target, "type": "tree"}


def _link(source: str, target: str) -> dict[str, object]:
    return {"src": source, "dst": target, "type": "symlink"}


def _file(source: Path, target: str, mode: int, kind: str = "") -> dict[str, object]:
    entry: dict[str, object] = {"src": str(source), "dst": target, "file_info": {"mode": mode}}
    return entry | ({"type": kind} if kind else {})


def _completions(folder: Path) -> list[dict[str, object]]:
    places = {
        "bash": "/usr/share/bash-completion/completions/ingero",
        "fish": "/usr/share/fish/vendor_completions.d/ingero.fish",
    }
    zsh = {"deb": "vendor-completions", "rpm": "site-functions"}  # of Debian and of Fedora
    return [_file(folder / shell, target, 0o644) for shell, target in places.items()] + [
        _file(folder / "zsh", f"/usr/share/zsh/{place}/_ingero", 0o644) | {"packager": kind}
        for kind, place in zsh.items()
    ]


def _packed(program: Path, recipe: dict[str, object], kind: str, folder: Path, out: Path) -> Path:
    file = folder / "nfpm.json"  # JSON is YAML
    file.write_text(json.dumps(recipe))
    command = [str(program), "package", "--config", str(file), "--packager", kind]
    before = set(out.iterdir())
    subprocess.run(
        [*command, "--target", str(out)], check=True, capture_output=True, env=build_environment()
    )
    (made,) = set(out.iterdir()) - before
    return made
