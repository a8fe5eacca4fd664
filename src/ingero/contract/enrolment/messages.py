"""What a node and Fleet send each other when a node joins, renews its certificate or leaves."""

from typing import Final

import msgspec

MAX_NAMES: Final = 16  # that a node may ask to be in its certificate
MAX_REQUEST_BYTES: Final = 32 << 10


class Authority(msgspec.Struct):
    """The certificate of Fleet's authority (PEM)."""

    certificate: str


class EnrolRequest(msgspec.Struct):
    """What a node asks for; of the signing request (PEM) Fleet uses the public key alone."""

    node: str
    signing_request: str
    names: list[str] = []
    addresses: list[str] = []


class EnrolReply(msgspec.Struct):
    """What a node gets. The certificate (PEM) is for its API, the token for its pushes."""

    node: str
    certificate: str
    authority: str
    token: str
    push_port: int
    names: list[str]
    cluster: str | None = None


class RenewRequest(msgspec.Struct):
    """A node asks for a new certificate, with its token."""

    signing_request: str
    names: list[str] = []
    addresses: list[str] = []


class RenewReply(msgspec.Struct):
    """The new certificate, and the authority, which may have a new certificate, too."""

    certificate: str
    authority: str


class LeaveReply(msgspec.Struct):
    """The node that has left."""

    node: str


class EnrolledNode(msgspec.Struct):
    """A node that Fleet vouches for, or did."""

    node: str
    names: list[str]
    enrolled_s: float
    certificate_until_s: float
    cluster: str | None = None
    revoked_s: float | None = None


class EnrolledNodes(msgspec.Struct):
    """Every node that was enrolled."""

    nodes: list[EnrolledNode]
