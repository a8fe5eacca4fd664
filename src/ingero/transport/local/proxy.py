"""Users that a reverse proxy has signed in and names in a header that only the proxy may send."""

import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingero.contract.names import PROXY_SECRET_HEADER
from ingero.contract.push.decode import problem_with_id
from ingero.transport.bearer import Key, TokenScope, token_digest

if TYPE_CHECKING:
    from starlette.datastructures import Headers

_READ: Final = frozenset({TokenScope.READ})
_OPERATE: Final = frozenset({TokenScope.READ, TokenScope.OPERATE})
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class SignedInUsers:
    """Who the proxy is, and what its users may do; network and secret must hold where set."""

    user_header: str
    networks: Sequence[Network] = ()
    secret_digest: bytes | None = None
    operators: frozenset[str] = frozenset()

    def find(self, headers: "Headers", address: str | None) -> Key | None:
        """Return the user of a request that came through the proxy; None for any other request.

        A header that is there twice may have been added by somebody else, and counts as none.
        """
        users = headers.getlist(self.user_header)
        if len(users) != 1 or problem_with_id(users[0]) or not self._is_proxy(headers, address):
            return None
        user = users[0]
        return Key(f"user {user}", b"", None, _OPERATE if user in self.operators else _READ)

    def _is_proxy(self, headers: "Headers", address: str | None) -> bool:
        if not self.networks and self.secret_digest is None:
            return False
        if self.networks and not self._is_known(address):
            return False
        if self.secret_digest is None:
            return True
        sent = headers.getlist(PROXY_SECRET_HEADER)
        return len(sent) == 1 and hmac.compare_digest(token_digest(sent[0]), self.secret_digest)

    def _is_known(self, address: str | None) -> bool:
        try:
            peer = ipaddress.ip_address(address or "")
        except ValueError:
            return False
        return any(peer in network for network in self.networks)
