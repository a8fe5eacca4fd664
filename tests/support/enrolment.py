"""An authority with join codes, and signing requests, for tests of enrolment."""

import hashlib
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from ingero.contract.enrolment.messages import EnrolRequest
from ingero.core.enrolment import IssuedCode, add_code
from ingero.storage.enrolment import EnrolmentFile
from ingero.transport.enrolment.authority import make_authority, new_key, signing_request


def enrolment_folder(folder: Path) -> Path:
    """A folder with an authority."""
    folder.mkdir(mode=0o700, parents=True)
    make_authority(folder, "test")
    return folder


def add_secret(folder: Path, secret: str, *, nodes: int = 1, valid_s: float = 60.0) -> IssuedCode:
    """A join code with this secret."""
    now_s = time.time()
    digest = hashlib.sha256(secret.encode()).hexdigest()
    code = IssuedCode(digest, now_s, now_s + valid_s, nodes)
    EnrolmentFile(folder).change(lambda now: add_code(now, code, now_s))
    return code


def asked(
    node: str, key: ec.EllipticCurvePrivateKey | None = None, **more: list[str]
) -> EnrolRequest:
    """What a node sends."""
    return EnrolRequest(node, signing_request(key or new_key(), node), **more)
