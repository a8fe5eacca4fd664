"""Checksums of all artefacts, and their signature by an SSH key."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

SUMS, SIGNATURE, SIGNERS = "SHA256SUMS", "SHA256SUMS.sig", "allowed_signers"
NAMESPACE = "ingero-release"
IDENTITY = "release@ingero"


def write_sums(folder: Path) -> Path:
    """Write the checksum of every artefact in the folder."""
    names = sorted(p.name for p in folder.iterdir() if p.name not in (SUMS, SIGNATURE, SIGNERS))
    lines = [f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    sums = folder / SUMS
    sums.write_text("".join(lines))
    return sums


def sign(folder: Path, key: Path) -> Path:
    """Sign the checksums; write beside them who may sign."""
    (folder / SIGNATURE).unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE]
    subprocess.run([*command, str(folder / SUMS)], check=True, capture_output=True)
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", key], check=True, capture_output=True, text=True
    ).stdout.split()
    (folder / SIGNERS).write_text(f"{IDENTITY} {public[0]} {public[1]}\n")
    return folder / SIGNATURE


def verify(folder: Path, signers: Path) -> None:
    """Raise SystemExit unless signature and checksums hold, and every artefact is listed."""
    with (folder / SUMS).open("rb") as sums:
        command = ["ssh-keygen", "-q", "-Y", "verify", "-f", str(signers), "-I", IDENTITY]
        command += ["-n", NAMESPACE, "-s", str(folder / SIGNATURE)]
        if subprocess.run(command, stdin=sums, capture_output=True, check=False).returncode:
            raise SystemExit(f"{folder / SIGNATURE} is no signature of {SUMS} by {signers}")
    lines = [line.split("  ", 1) for line in (folder / SUMS).read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    present = {p.name for p in folder.iterdir()} - {SUMS, SIGNATURE, SIGNERS}
    if present != set(listed):
        raise SystemExit(f"{SUMS} does not list {sorted(present ^ set(listed))}")
    for name, digest in listed.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{folder / name} is not what {SUMS} says")


def release_key(work: Path) -> Path | None:
    """Return the private key of $RELEASE_KEY, which holds its path or the key itself."""
    given = os.environ.get("RELEASE_KEY", "")
    if not given:
        return None
    if not given.startswith("-----BEGIN"):
        return Path(given)
    handle, name = tempfile.mkstemp(dir=work)  # readable by its owner alone
    with os.fdopen(handle, "w") as file:
        file.write(given.rstrip("\n") + "\n")
    return Path(name)
