"""Enrols nodes: checks join codes, signs certificates, issues tokens, and notices revocations."""

import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ingero.contract.enrolment.messages import EnrolledNode, EnrolRequest, RenewRequest
from ingero.core.enrolment import (
    Enrolment,
    IssuedCode,
    Member,
    Wish,
    changed,
    check_wish,
    enrolled,
    find_code,
    granted_names,
    without,
)
from ingero.errors import AuthError, StoreError
from ingero.files import FileId
from ingero.fleet.enrolment.own_certificates import OwnCertificates
from ingero.storage.enrolment import AuditFile, EnrolmentFile
from ingero.transport.bearer import Key, TokenScope, token_digest
from ingero.transport.enrolment.authority import (
    NODE_DAYS,
    SigningAuthority,
    key_digest,
    load_authority,
    requested_key,
)

DAY_S: Final = 86400.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Issued:
    """What a node gets when it is enrolled."""

    member: Member
    certificate: str
    token: str


class EnrolmentService:
    """Owner of the authority, and of the tokens that nodes hold.

    `keys` are those of enrolled nodes by the digest of their token; a new mapping replaces it.
    """

    def __init__(self, folder: Path, reserved_names: Sequence[str]) -> None:
        self.authority: SigningAuthority = load_authority(folder)
        self.certificates = OwnCertificates(self.authority, ())
        self.file, self.audit = EnrolmentFile(folder), AuditFile(folder)
        self.outcomes: Counter[str] = Counter()
        self.keys: dict[bytes, Key] = {}
        self.enrolment = Enrolment()
        self._reserved = tuple(reserved_names)
        self._seen: FileId | None = None
        self._was_read = False
        self._is_damaged = False

    def refresh(self) -> bool:
        """Take over what commands or other replicas changed; return whether anything changed.

        While the file cannot be read, what was read last stays valid.
        """
        identity = self.file.identity()
        if self._was_read and identity == self._seen:
            return False
        try:
            self._take(self.file.read())
        except StoreError as error:
            if not self._is_damaged:
                log.error("enrolment_unreadable", extra={"why": str(error)})
            self._is_damaged = True
            return False
        self._seen, self._was_read, self._is_damaged = identity, True, False
        return True

    def _take(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.keys = {
            bytes.fromhex(member.token_digest): Key(
                f"node {member.node}",
                bytes.fromhex(member.token_digest),
                None if member.cluster is None else frozenset({member.cluster}),
                frozenset({TokenScope.PUSH}),
                node=member.node,
            )
            for member in enrolment.active()
        }

    def code_of(self, secret: str | None, now_s: float) -> IssuedCode | None:
        """Return the valid code with this secret, which is written in hex digits."""
        digest = hashlib.sha256((secret or "").encode()).hexdigest()
        self.refresh()
        return find_code(self.enrolment, digest, now_s)

    def enrol(self, code: IssuedCode, request: EnrolRequest, peer: str | None) -> Issued:
        """Enrol a node; raise AuthError where it may not be. Blocks on the disk."""
        public_key = requested_key(request.signing_request)
        wish = Wish(
            request.node,
            key_digest(public_key),
            tuple(request.names),
            tuple(request.addresses),
            peer,
        )
        token, now_s = secrets.token_hex(32), time.time()
        issued: list[Issued] = []

        def decide(now: Enrolment) -> Enrolment:
            present = find_code(now, code.digest, now_s)  # it may have been used up meanwhile
            if present is None:
                raise AuthError("this join code is not valid any more")
            check_wish(now, present, wish)
            names = granted_names(now, wish, self._reserved)
            member = Member(
                node=wish.node,
                key_digest=wish.key_digest,
                token_digest=token_digest(token).hex(),
                names=names,
                code=present.id,
                enrolled_s=now_s,
                certificate_until_s=now_s + NODE_DAYS * DAY_S,
                cluster=present.cluster,
            )
            certificate = self.authority.sign_server(public_key, names, NODE_DAYS)
            issued.append(Issued(member, certificate, token))
            return enrolled(now, present, member)

        self.file.change(decide)
        self.refresh()
        self.note("enrolled", wish.node, peer, code=code.id, names=list(issued[0].member.names))
        return issued[0]

    def renew(self, node: str, request: RenewRequest, peer: str | None) -> str:
        """Return a new certificate for the key that a node was enrolled with; raise AuthError."""
        public_key = requested_key(request.signing_request)
        digest, now_s = key_digest(public_key), time.time()
        certificate = ""

        def decide(now: Enrolment) -> Enrolment:
            nonlocal certificate
            member = now.members.get(node)
            if member is None or member.revoked_s is not None:
                raise AuthError(f"{node} is not enrolled any more")
            if member.key_digest != digest:
                raise AuthError("a certificate is renewed for the key it was made for")
            wish = Wish(node, digest, tuple(request.names), tuple(request.addresses), peer)
            names = granted_names(now, wish, self._reserved)
            certificate = self.authority.sign_server(public_key, names, NODE_DAYS)
            until_s = now_s + NODE_DAYS * DAY_S
            return changed(now, replace(member, names=names, certificate_until_s=until_s))

        self.file.change(decide)
        self.refresh()
        self.note("renewed", node, peer)
        return certificate

    def leave(self, node: str, peer: str | None) -> None:
        """Remove a node that leaves; its token is no longer valid."""
        self.file.change(lambda now: without(now, node))
        self.refresh()
        self.note("left", node, peer)

    def note(self, event: str, node: str, peer: str | None, **more: object) -> None:
        """Count an event, and write it to the log and to the audit file."""
        self.outcomes[event] += 1
        fields = {"node": node, "peer": peer, **more}
        log.info(f"node_{event}", extra=fields)
        self.audit.add({"at_s": round(time.time(), 3), "event": event, **fields})

    def listed(self) -> list[EnrolledNode]:
        """Return every node that was enrolled."""
        return [
            EnrolledNode(
                member.node,
                list(member.names),
                member.enrolled_s,
                member.certificate_until_s,
                member.cluster,
                member.revoked_s,
            )
            for _, member in sorted(self.enrolment.members.items())
        ]
