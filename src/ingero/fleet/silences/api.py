"""HTTP endpoints that list, start and lift silences, with the token of the threshold listener."""

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingero.contract.api_paths import FLEET_SILENCES, FLEET_SILENCES_LIFT
from ingero.contract.fleet_api import LiftedSilences, SilenceList
from ingero.contract.replicas.entries import Entry, SilenceBegun, SilenceLifted
from ingero.contract.silence import LiftRequest, Silence, SilenceRequest
from ingero.errors import StoreError, TooLarge, Unavailable
from ingero.fleet.allowed_clusters import not_allowed
from ingero.fleet.processor import FleetProcessor
from ingero.fleet.silences.book import Silences
from ingero.fleet.verdicts import VerdictService
from ingero.transport.access import Access
from ingero.transport.bearer import TokenScope
from ingero.transport.bounded import read_request_body
from ingero.transport.browsers import is_local_name
from ingero.transport.http import error_response, json_response, key_of, require_token
from ingero.transport.tls import is_loopback

MAX_REQUEST_BYTES = 4096
Share = Callable[[Entry], Awaitable[None]]  # returns when the change is in force here
T = TypeVar("T", SilenceRequest, LiftRequest)


def silence_routes(
    verdicts: VerdictService, processor: FleetProcessor, access: Access, share: Share | None
) -> list[Route]:
    """Return the routes that `ingero silence` uses; several replicas `share` each change."""
    silences = verdicts.silences

    async def listed(request: Request) -> Response:
        key = key_of(request)
        found = [
            silence
            for silence in silences.active(time.time())
            if silence.cluster is None or key.may_see(silence.cluster)
        ]
        return json_response(SilenceList(found))

    async def begin(request: Request) -> Response:
        asked = await _asked(request, access, SilenceRequest)
        if isinstance(asked, Response):
            return asked
        if not asked.force and not _is_known(asked, verdicts, processor):
            where = f"cluster {asked.cluster!r}" if asked.cluster else "any cluster"
            unknown = (
                f"no node or job {asked.target!r} reports in {where}; "
                "check its name with `ingero status --all`, or use --force"
            )
            return error_response(unknown, HTTPStatus.UNPROCESSABLE_ENTITY)
        return await _changed(_begun(silences, asked, share))

    async def lift(request: Request) -> Response:
        asked = await _asked(request, access, LiftRequest)
        if isinstance(asked, Response):
            return asked
        return await _changed(_lifted(silences, asked, share))

    may_list = (TokenScope.READ, TokenScope.OPERATE)
    started = require_token(access, begin, TokenScope.OPERATE)
    lifted = require_token(access, lift, TokenScope.OPERATE)
    return [
        Route(FLEET_SILENCES, require_token(access, listed, *may_list), methods=["GET"]),
        Route(FLEET_SILENCES, started, methods=["POST"]),
        Route(FLEET_SILENCES_LIFT, lifted, methods=["POST"]),
    ]


async def _begun(silences: Silences, asked: SilenceRequest, share: Share | None) -> Silence:
    if share is None:
        return silences.put(asked, time.time())
    silence = silences.accept(asked, time.time())
    await share(SilenceBegun(silence))
    return silence


async def _lifted(silences: Silences, asked: LiftRequest, share: Share | None) -> LiftedSilences:
    if share is None:
        return LiftedSilences(silences.lift(asked))
    lifted = silences.matching(asked)
    await share(SilenceLifted(asked))
    return LiftedSilences(lifted)


async def _changed(change: Awaitable[Silence | LiftedSilences]) -> Response:
    """Answer with what was changed, or why nothing was."""
    try:
        return json_response(await change)
    except StoreError as error:
        return error_response(str(error), HTTPStatus.INSUFFICIENT_STORAGE)
    except Unavailable as error:
        return error_response(str(error), HTTPStatus.SERVICE_UNAVAILABLE)


def _is_known(asked: SilenceRequest, verdicts: VerdictService, processor: FleetProcessor) -> bool:
    """Tell whether a node or job of that name has reported to this Fleet, and still may."""
    for name, cluster in processor.clusters.items():
        if asked.cluster in (None, name):
            reports = (cluster.roster.reports[row] for row in cluster.roster.rows.values())
            if asked.target in cluster.roster.rows or any(
                report is not None and report.job == asked.target for report in reports
            ):
                return True
    return any(
        asked.target in (member.node, member.job)
        for name, judged in verdicts.clusters.items()
        if asked.cluster in (None, name)
        for member in judged.engine.registry.members
    )


async def _asked(request: Request, access: Access, kind: type[T]) -> T | Response:
    """Decode a request as `kind`, or return the refusal.

    A listener without a token accepts changes only from this machine, under one of its local names.
    """
    is_local = request.client is not None and is_loopback(request.client.host)
    if not access.is_required and not (is_local and is_local_name(request.headers.get("host", ""))):
        needed = "silences from other machines need a token: extensions.ingero_threshold.token_file"
        return error_response(needed, HTTPStatus.FORBIDDEN)
    try:
        asked = msgspec.json.decode(await read_request_body(request, MAX_REQUEST_BYTES), type=kind)
    except TooLarge as error:
        return error_response(str(error), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    except msgspec.DecodeError as error:
        return error_response(str(error), HTTPStatus.BAD_REQUEST)
    key = key_of(request)
    if key.clusters is not None and asked.cluster not in key.clusters:
        return error_response(not_allowed(asked.cluster), HTTPStatus.FORBIDDEN)
    return asked
