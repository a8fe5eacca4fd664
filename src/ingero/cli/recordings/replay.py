"""Recorded inputs of Fleet, replayed in the reading child, and the answer that it sends."""

from dataclasses import replace
from pathlib import Path

import msgspec

from ingero.contract.verdict import Verdict
from ingero.errors import ConfigError, ForeignFile, MalformedInput, StoreError, TooLarge
from ingero.fleet.replay import Replay, Replayed, replay


class ReplayAnswer(msgspec.Struct):
    """What a replay gave; `chosen` are the verdicts of the folder or of one episode."""

    is_folder: bool
    is_same: bool
    pushes: int
    ticks: int
    verdicts: int
    missing: list[Verdict]
    chosen: list[Replayed]


def folder_of(what: Path, folder: Path) -> Path:
    """Return the folder to replay; raise ConfigError where neither path is one."""
    if what.is_dir():
        return what
    if not folder.is_dir():
        raise ConfigError(
            f"{what} is not a folder, and there is no folder {folder} to search for an episode; "
            "give --dir"
        )
    return folder


def answer_replay(what: Path, folder: Path, wants_peers: bool) -> ReplayAnswer:
    """Replay a folder and choose its verdicts, or those of the episode that `what` names.

    An episode has the reasons of its peers, a folder only with `wants_peers`.
    """
    result, is_folder = _replay(folder), folder == what
    chosen = [each for each in result.verdicts if is_folder or each.verdict.episode == str(what)]
    if not chosen and not is_folder:
        raise StoreError(f"no episode {what} in {folder}; `ingero replay {folder}` lists them")
    if is_folder and not wants_peers:
        chosen = [replace(each, peers=()) for each in chosen]
    return ReplayAnswer(
        is_folder,
        result.is_same,
        result.pushes,
        result.ticks,
        len(result.verdicts),
        result.missing,
        chosen,
    )


def _replay(folder: Path) -> Replay:
    """Replay a recording; errors name the folder."""
    try:
        return replay(folder)
    except (MalformedInput, TooLarge) as error:
        if str(folder) in str(error):
            raise
        raise ForeignFile(f"{folder}: {error}") from error
