"""Who may use a listener: its bearer tokens, replaced without a restart.

Only digests of tokens are kept. A token that a reload removed may stay valid for a grace period, so
that senders and dashboards can change over one by one. Failed attempts are limited by address.
"""

import hmac
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from ingero.transport.bearer import BEARER_NEEDED, Key, TokenScope, parse_bearer, token_digest
from ingero.transport.local.proxy import SignedInUsers
from ingero.transport.rate_limit import RateLimit, address_group

log = logging.getLogger(__name__)

FAILURES_AT_ONCE: Final = 300  # replies with status 401 to one address, then as many per minute
_ANYBODY: Final = Key("anybody", b"")


@dataclass(frozen=True, slots=True)
class Denied:
    """Why a request is refused before its body is read."""

    status: HTTPStatus
    message: str
    retry_after_s: int | None = None


class Access:
    """The tokens that are valid now; without any (`keys` is None), everybody is admitted.

    Times are of a monotonic clock.
    """

    def __init__(self, keys: Iterable[Key] | None, grace_s: float = 0.0) -> None:
        self._keys = () if keys is None else tuple(keys)
        self._leaving: tuple[tuple[Key, float], ...] = ()
        self._grace_s = grace_s
        self._failures = RateLimit(FAILURES_AT_ONCE / 60, FAILURES_AT_ONCE)
        self.is_required = keys is not None
        self.users: SignedInUsers | None = None  # whom a reverse proxy has signed in
        # the tokens of enrolled nodes, by digest; nobody can choose a digest to learn from its time
        self.issued: Callable[[], Mapping[bytes, Key]] = dict

    def replace(self, keys: Iterable[Key], now_s: float) -> None:
        """Take a new set of tokens.

        Those that are no longer in it stay valid for the grace period, with the scope they had.
        """
        fresh = tuple(keys)
        known = {key.digest for key in fresh}
        leaving = [
            (key, until)
            for key, until in self._leaving
            if key.digest not in known and until > now_s
        ]
        leaving += [(key, now_s + self._grace_s) for key in self._keys if key.digest not in known]
        self._keys, self._leaving = fresh, tuple(leaving)
        log.info("bearers_replaced", extra={"bearers": len(fresh), "in_grace": len(leaving)})

    def find(self, authorization: str | None, now_s: float) -> Key | None:
        """Return the key of an Authorization header.

        All keys are compared, so that the time taken reveals nothing.
        """
        token = parse_bearer(authorization)
        if token is None:
            return None
        presented = token_digest(token)
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(presented, key.digest):
                found = key
        for key, until in self._leaving:
            if hmac.compare_digest(presented, key.digest) and now_s < until:
                found = key
        return found or self.issued().get(presented)

    def admits(self, authorization: str | None) -> bool:
        """Return whether no token is required, or the header has one that may push to all clusters.

        `check` decides about every other token.
        """
        if not self.is_required:
            return True
        key = self.find(authorization, time.monotonic())
        return (
            key is not None
            and key.clusters is None
            and key.node is None
            and TokenScope.PUSH in key.scopes
        )

    def check(
        self, authorization: str | None, address: str | None, *scopes: TokenScope
    ) -> Key | Denied:
        """Return the key of a request, or the refusal; the key must have one of the scopes.

        A valid token is admitted from any address, so that nobody can lock out others behind the
        same address. Only wrong ones are limited.
        """
        if not self.is_required:
            return _ANYBODY
        now_s = time.monotonic()
        key = self.find(authorization, now_s)
        if key is not None:
            return key if key.may(*scopes) else Denied(HTTPStatus.FORBIDDEN, lacks_scope(scopes))
        wait_s = self._failures.take(address_group(address), now_s)
        if not wait_s:
            return Denied(HTTPStatus.UNAUTHORIZED, BEARER_NEEDED)
        after_s = int(wait_s) + 1
        message = f"too many requests without a valid bearer token; try again in {after_s} s"
        return Denied(HTTPStatus.TOO_MANY_REQUESTS, message, after_s)


def lacks_scope(scopes: tuple[TokenScope, ...]) -> str:
    """Return the reason why a sender is refused."""
    return f"this token lacks the scope {' or '.join(scopes)}"
