"""The saved baseline of a node: written atomically, and used only when it is recent and valid."""

import contextlib
import datetime
import errno
import math
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from ingero.contract.timestamps import rfc3339_ns
from ingero.core.health.baseline import Baseline, BaselinePolicy, same_alphas
from ingero.core.health.score import Signals
from ingero.files import replacing

SCHEMA_VERSION = 1
MAX_BYTES = 1 << 20
_MAX_QUARANTINED = 1000


class LoadOutcome(StrEnum):
    """What was found in the file. After anything but FRESH, the node calibrates anew."""

    MISSING = "missing"
    FRESH = "fresh"
    STALE = "stale"  # too old, or saved in the future: deleted
    CORRUPT = "corrupt"  # renamed, so that somebody can look at it
    UNREADABLE = "unreadable"  # not changed
    NEWER_VERSION = "newer_version"  # not changed, because a newer agent may run again
    OTHER_SETTINGS = "other_settings"  # averages made with other factors are not comparable


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome, the baseline if it is FRESH, and a sentence for the log."""

    outcome: LoadOutcome
    baseline: Baseline | None = None
    detail: str = ""


class _Averages(msgspec.Struct, frozen=True):
    Throughput: float
    Compute: float
    Memory: float
    CPU: float


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    schema_version: int
    saved_at: str
    sample_count: int
    fast_alpha: float
    floor_alpha: float
    fast_ema: _Averages
    hard_floor: _Averages
    # set only if a signal was missing for some time
    signal_samples: tuple[int, int, int, int] | None = None


class _Version(msgspec.Struct, frozen=True):
    schema_version: int


def save_baseline(path: Path, baseline: Baseline, policy: BaselinePolicy, now_ns: int) -> None:
    """Write the file atomically. On failure (OSError) the old file is unchanged."""
    count = baseline.sample_count
    document = _Document(
        schema_version=SCHEMA_VERSION,
        saved_at=rfc3339_ns(now_ns),
        sample_count=count,
        fast_alpha=policy.fast_alpha,
        floor_alpha=policy.floor_alpha,
        fast_ema=_averages(baseline.fast),
        hard_floor=_averages(baseline.floor),
        signal_samples=None if baseline.counts == (count,) * 4 else baseline.counts,
    )
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with replacing(path, mode=0o644) as file:
        file.write(text)


def load_baseline(path: Path, policy: BaselinePolicy, now_ns: int, max_age_s: float) -> Loaded:
    """Read the file.

    Stale files are deleted, corrupt ones renamed, and those of newer versions kept.
    """
    try:
        data = _read(path)
    except FileNotFoundError:
        return Loaded(LoadOutcome.MISSING)
    except _TooLarge:
        return _quarantine(path, now_ns, f"larger than {MAX_BYTES} bytes")
    except OSError as error:
        return Loaded(LoadOutcome.UNREADABLE, detail=f"{path}: {error.strerror}")
    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version > SCHEMA_VERSION:
            return Loaded(
                LoadOutcome.NEWER_VERSION,
                detail=f"{path} has schema {version}, this agent reads schema 1",
            )
        if version < SCHEMA_VERSION:
            raise ValueError(f"schema {version}")
        document = msgspec.json.decode(data, type=_Document)
        baseline = _baseline(document)
        age_s = now_ns / 1e9 - _unix_s(document.saved_at)
    except (
        msgspec.MsgspecError,
        ValueError,
        OverflowError,
        RecursionError,
        UnicodeDecodeError,
    ) as error:
        return _quarantine(path, now_ns, str(error))
    if not 0 <= age_s <= max_age_s:
        with contextlib.suppress(OSError):
            path.unlink()
        return Loaded(LoadOutcome.STALE, detail=f"saved {age_s:.0f} s ago")
    if not same_alphas(document.fast_alpha, document.floor_alpha, policy):
        return Loaded(
            LoadOutcome.OTHER_SETTINGS, detail=f"{path} was made with other averaging factors"
        )
    return Loaded(LoadOutcome.FRESH, baseline)


def _unix_s(text: str) -> float:
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"saved_at {text!r} has no time zone")
    return moment.timestamp()


class _TooLarge(Exception):
    """The file is too large to be a baseline."""


def _read(path: Path) -> bytes:
    """Read the file without following a link, and without waiting if it is a device or a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > MAX_BYTES:
            raise _TooLarge
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _TooLarge
    return data


def _averages(signals: Signals) -> _Averages:
    t, c, m, p = (value or 0.0 for _, value in signals.items())
    return _Averages(t, c, m, p)


def _baseline(document: _Document) -> Baseline:
    if not (math.isfinite(document.fast_alpha) and math.isfinite(document.floor_alpha)):
        raise ValueError("a factor is not finite")
    count = document.sample_count
    fast, floor = document.fast_ema, document.hard_floor
    return Baseline(
        sample_count=count,
        fast=Signals(fast.Throughput, fast.Compute, fast.Memory, fast.CPU),
        floor=Signals(floor.Throughput, floor.Compute, floor.Memory, floor.CPU),
        counts=document.signal_samples or (count, count, count, count),
    )


def _quarantine(path: Path, now_ns: int, problem: str) -> Loaded:
    moment = datetime.datetime.fromtimestamp(now_ns // 10**9, datetime.UTC)
    base = f"{path.name}.corrupt-{moment:%Y%m%dT%H%M%S}.{now_ns % 10**9:09d}Z"
    for attempt in range(_MAX_QUARANTINED):
        target = path.with_name(base if attempt == 0 else f"{base}.{attempt}")
        if target.exists():
            continue
        try:
            path.rename(target)
        except OSError as error:
            return Loaded(
                LoadOutcome.CORRUPT,
                detail=f"{problem}; and it cannot be renamed: {error.strerror}",
            )
        return Loaded(LoadOutcome.CORRUPT, detail=f"{problem}; kept as {target}")
    return Loaded(LoadOutcome.CORRUPT, detail=problem)
