"""HTTP endpoints of episodes, for tokens with the scope `read` and the episode's cluster."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingero.contract.api_paths import (
    FLEET_EPISODE,
    FLEET_EPISODE_INPUTS,
    FLEET_EPISODE_TRACE,
    FLEET_EPISODES,
)
from ingero.contract.episodes.episode import Episode, EpisodeList, EpisodeSummary
from ingero.contract.names import JSON_TYPE
from ingero.fleet.episodes.book import EpisodeBook
from ingero.transport.access import Access
from ingero.transport.bearer import TokenScope
from ingero.transport.http import error_response, json_response, key_of, require_token

BINARY = "application/octet-stream"
_SUMMARY = EpisodeSummary.__struct_fields__


def episode_routes(
    book: EpisodeBook, look_up: Callable[[str], Episode | None], access: Access
) -> list[Route]:
    """Return the routes that the page, `ingero replay` and `ingero report` use.

    `look_up` finds an episode with what is known about its peers and alerts now.
    """
    tracing = asyncio.Lock()  # one at a time: a trace takes a second of a core

    async def listed(request: Request) -> Response:
        key = key_of(request)
        visible = [each.episode for each in book.episodes.values() if key.may_see(each.cluster)]
        found = (book.find(name) for name in reversed(visible))
        return json_response(EpisodeList([_summary(each) for each in found if each is not None]))

    async def one(request: Request) -> Response:
        found = _find(book, request)
        return found if isinstance(found, Response) else json_response(look_up(found.episode))

    async def inputs(request: Request) -> Response:
        found = _find(book, request)
        if isinstance(found, Response):
            return found
        segments = book.inputs.segments_of(found.episode)
        if not segments:
            gone = f"the inputs of episode {found.episode} were not kept, or made room for others"
            return error_response(gone, HTTPStatus.GONE)
        return Response(await asyncio.to_thread(book.inputs.join, segments), media_type=BINARY)

    async def trace(request: Request) -> Response:
        found = _find(book, request)
        if isinstance(found, Response):
            return found
        from ingero.fleet.episodes.trace import encode_trace  # noqa: PLC0415 - rarely asked for

        copied = msgspec.structs.replace(found, verdicts=list(found.verdicts))
        async with tracing:
            segments = book.inputs.segments_of(found.episode)
            body = await asyncio.to_thread(encode_trace, copied, segments)
        return Response(body, media_type=JSON_TYPE)

    return [
        Route(FLEET_EPISODES, require_token(access, listed, TokenScope.READ)),
        Route(FLEET_EPISODE, require_token(access, one, TokenScope.READ)),
        Route(FLEET_EPISODE_INPUTS, require_token(access, inputs, TokenScope.READ)),
        Route(FLEET_EPISODE_TRACE, require_token(access, trace, TokenScope.READ)),
    ]


def _find(book: EpisodeBook, request: Request) -> Episode | Response:
    """Return the episode that a path names; one of another cluster does not exist for a token."""
    name = request.path_params["episode"]
    found = book.find(name)
    if found is None or not key_of(request).may_see(found.cluster):
        return error_response(f"no episode {name!r} is kept", HTTPStatus.NOT_FOUND)
    return found


def _summary(episode: Episode) -> EpisodeSummary:
    return msgspec.convert(
        {name: getattr(episode, name) for name in _SUMMARY}, EpisodeSummary, from_attributes=True
    )
