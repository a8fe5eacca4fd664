"""Renews the certificates in Fleet's folders that Fleet's own authority signed.

The key and the names stay. New connections get the new certificate; open ones go on as they are.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ingero.errors import StoreError
from ingero.files import PRIVATE, FileId, identity_of, replace_file
from ingero.transport.certificates import names_in
from ingero.transport.enrolment.authority import SERVER_DAYS, SigningAuthority

RENEW_AT: Final = 1 / 3  # of its life is left
CHECK_S: Final = 3600.0  # also how soon a certificate that a replica renewed is used
RETRY_S: Final = 60.0
_SOONEST_S: Final = 0.1
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: whether a file has changed, and when to check again."""

    is_new: bool
    again_in_s: float


class OwnCertificates:
    """Certificate files of listeners and of the operator that `authority` signed.

    Others are left alone.
    """

    def __init__(self, authority: SigningAuthority, files: Sequence[Path]) -> None:
        self._authority = authority
        self._files = [file for file in dict.fromkeys(files) if self._is_ours(file)]
        self._seen = {file: _identity(file) for file in self._files}
        self._failed: dict[Path, str] = {}  # why, as it was logged

    def _is_ours(self, file: Path) -> bool:
        try:
            _load(file).verify_directly_issued_by(self._authority.certificate)
        except (OSError, ValueError, TypeError, InvalidSignature):
            return False
        return True

    def check(self, now: datetime) -> Checked:
        """Renew what is due; blocks on the disk."""
        again_s = CHECK_S
        for file in self._files:
            try:
                left_s = self._renew_if_due(file, now)
                self._failed.pop(file, None)
            except (OSError, ValueError, StoreError, x509.ExtensionNotFound) as error:
                self._log_once(file, str(error))
                left_s = RETRY_S
            again_s = min(again_s, left_s)
        before, self._seen = self._seen, {file: _identity(file) for file in self._files}
        return Checked(self._seen != before, max(again_s, _SOONEST_S))

    def _log_once(self, file: Path, why: str) -> None:
        """Log a failure when it begins or changes: an operator may have moved the file away."""
        if self._failed.get(file) != why:
            self._failed[file] = why
            log.error("certificate_not_renewed", extra={"file": str(file), "why": why})

    async def renew_forever(self, use: Callable[[], None]) -> None:
        """Renew in time until cancelled; `use` makes listeners read their files again."""
        while True:
            again_s = RETRY_S
            try:
                checked = await asyncio.to_thread(self.check, datetime.now(UTC))
                if checked.is_new:
                    use()
                again_s = checked.again_in_s
            except Exception:  # one check that fails must not stop all later ones
                log.exception("renewal_failed")
            await asyncio.sleep(again_s)

    def _renew_if_due(self, file: Path, now: datetime) -> float:
        """Return the seconds until this certificate is due."""
        present = _load(file)
        life = present.not_valid_after_utc - present.not_valid_before_utc
        due = present.not_valid_after_utc - life * RENEW_AT
        if now < due:
            return (due - now).total_seconds()
        key = present.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("its key is not one that this authority signs")
        if _is_for_client(present):
            pem = self._authority.sign_client(key, _name_of(present))
        else:
            pem = self._authority.sign_server(key, names_in(file), SERVER_DAYS)
        replace_file(file, pem.encode(), PRIVATE)
        log.info("certificate_renewed", extra={"file": str(file)})
        return CHECK_S


def _load(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def _is_for_client(certificate: x509.Certificate) -> bool:
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return ExtendedKeyUsageOID.CLIENT_AUTH in uses


def _name_of(certificate: x509.Certificate) -> str:
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


def _identity(file: Path) -> FileId | None:
    try:
        return identity_of(file.stat())
    except OSError:
        return None
