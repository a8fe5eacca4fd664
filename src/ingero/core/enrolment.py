"""Who may be enrolled as which node: join codes, nodes and their names. Pure decisions.

A code that is stolen can be used by somebody else, so it ends after a time and after a number of
nodes, and may be limited to names. Nobody can take the name of a node that is enrolled.
"""

import fnmatch
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ingero.contract.enrolment.messages import MAX_NAMES
from ingero.contract.push.decode import problem_with_id
from ingero.core.counted import counted
from ingero.errors import AuthError

MAX_CODES: Final = 1000
MAX_ENROLLED: Final = 10_000
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")  # in every certificate, and nobody's own
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_MAX_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class IssuedCode:
    """A join code as Fleet keeps it: the digest of its secret, never the secret."""

    digest: str
    created_s: float
    expires_s: float
    max_nodes: int
    pattern: str = "*"
    cluster: str | None = None
    used_by: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The part of the digest that lists and logs show."""
        return self.digest[:12]


@dataclass(frozen=True, slots=True)
class Member:
    """A node that was enrolled; one that was revoked is kept, so that it cannot come back."""

    node: str
    key_digest: str
    token_digest: str
    names: tuple[str, ...]
    code: str
    enrolled_s: float
    certificate_until_s: float
    cluster: str | None = None
    revoked_s: float | None = None


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Every code and every node; `cluster` is that of codes for which none is named."""

    codes: tuple[IssuedCode, ...] = ()
    members: Mapping[str, Member] = field(default_factory=dict)
    cluster: str | None = None

    def active(self) -> list[Member]:
        """Return the nodes that are not revoked."""
        return [member for member in self.members.values() if member.revoked_s is None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a node asks for; `peer` is the address that its request came from."""

    node: str
    key_digest: str
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    peer: str | None = None


def find_code(enrolment: Enrolment, secret_digest: str, now_s: float) -> IssuedCode | None:
    """Return the code with this digest unless it has expired.

    All codes are compared, so that the time taken reveals nothing.
    """
    found: IssuedCode | None = None
    for code in enrolment.codes:
        if hmac.compare_digest(code.digest, secret_digest) and now_s < code.expires_s:
            found = code
    return found


def add_code(enrolment: Enrolment, code: IssuedCode, now_s: float) -> Enrolment:
    """Return the enrolment with one code more, without those that have expired."""
    valid = tuple(each for each in enrolment.codes if now_s < each.expires_s)
    if len(valid) >= MAX_CODES:
        raise AuthError(f"{len(valid)} join codes are valid; wait until some have expired")
    return replace(enrolment, codes=(*valid, code))


def check_wish(enrolment: Enrolment, code: IssuedCode, wish: Wish) -> None:
    """Raise AuthError, with a reason for the person who joins, where a node may not be enrolled."""
    node = wish.node
    if problem_with_id(node) or ":" in node:
        raise AuthError("the name of a node is 1 to 253 printable characters without a colon")
    if not fnmatch.fnmatchcase(node, code.pattern):
        raise AuthError(f"this join code is for nodes called {code.pattern}, not {node}")
    known = enrolment.members.get(node)
    if known is not None and known.revoked_s is not None:
        # somebody who was revoked may still hold the code of that time
        if code.created_s <= known.revoked_s:
            raise AuthError(f"{node} was revoked; join again with a code that was made afterwards")
    elif known is not None and not hmac.compare_digest(known.key_digest, wish.key_digest):
        raise AuthError(
            f"{node} is enrolled with another key; run `ingero leave` there, or "
            f"`ingero fleet revoke {node}` at Fleet and join with a new code"
        )
    if node not in code.used_by and len(code.used_by) >= code.max_nodes:
        raise AuthError(
            f"this join code was for {counted(code.max_nodes, 'node')}, and all have joined; "
            "`ingero fleet code` makes another"
        )
    if known is None and len(enrolment.members) >= MAX_ENROLLED:
        raise AuthError(f"{MAX_ENROLLED} nodes are enrolled, which is the limit")


def granted_names(enrolment: Enrolment, wish: Wish, reserved: Iterable[str]) -> tuple[str, ...]:
    """Return the names for a node's certificate: those that are certainly its own.

    These are its name, longer forms of it (`gpu-1.example`), and the address that its request came
    from, unless they belong to Fleet or to another node. Anything else would be a claim.
    """
    taken = {name.lower() for name in reserved}
    for member in enrolment.active():
        if member.node != wish.node:
            taken |= {name.lower() for name in (member.node, *member.names)}
    asked = dict.fromkeys((wish.node, *wish.names[:MAX_NAMES]))
    names = [
        name
        for name in asked
        if is_host_name(name) and (name == wish.node or name.startswith(f"{wish.node}."))
    ]
    if wish.peer is not None and wish.peer in wish.addresses:
        names.append(wish.peer)
    granted = [name for name in names if name.lower() not in taken]
    return tuple(dict.fromkeys((*granted, *LOCAL_NAMES)))


def is_host_name(name: str) -> bool:
    """Return whether a certificate may be for this name: no wildcard and no address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        labels = name.split(".")
        is_number = labels[-1].isdigit()  # some programs take 127.1 for an address
        return (
            len(name) <= _MAX_NAME
            and not is_number
            and all(_LABEL.fullmatch(label) for label in labels)
        )
    return False


def enrolled(enrolment: Enrolment, code: IssuedCode, member: Member) -> Enrolment:
    """Return the enrolment with this node, which counts against its code."""
    codes = tuple(
        replace(each, used_by=tuple(dict.fromkeys((*each.used_by, member.node))))
        if each.digest == code.digest
        else each
        for each in enrolment.codes
    )
    return changed(replace(enrolment, codes=codes), member)


def changed(enrolment: Enrolment, member: Member) -> Enrolment:
    """Return the enrolment with another state of a node."""
    return replace(enrolment, members={**enrolment.members, member.node: member})


def revoked(enrolment: Enrolment, node: str, now_s: float) -> Enrolment:
    """Return the enrolment in which a node is revoked; raise AuthError for an unknown one."""
    member = enrolment.members.get(node)
    if member is None:
        raise AuthError(f"no node {node} is enrolled; `ingero fleet nodes` lists them")
    if member.revoked_s is not None:
        return enrolment
    return changed(enrolment, replace(member, revoked_s=now_s))


def without(enrolment: Enrolment, node: str) -> Enrolment:
    """Return the enrolment without a node that has left."""
    members = {name: member for name, member in enrolment.members.items() if name != node}
    return replace(enrolment, members=members)
