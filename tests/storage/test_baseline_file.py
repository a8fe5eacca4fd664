"""The saved baseline: which files are used, renamed, deleted or left unchanged."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.shared_data import shared

from ingero.core.health.baseline import Baseline, BaselinePolicy, fold
from ingero.core.health.score import Signals
from ingero.storage.baseline_file import LoadOutcome, load_baseline, save_baseline

POLICY = BaselinePolicy()
NOW_NS = 1_794_709_942 * 10**9
MAX_AGE_S = 600.0


def warm(missing_memory: int = 0) -> Baseline:
    baseline = Baseline()
    for sample in range(40):
        memory = None if sample < missing_memory else 0.5
        baseline = fold(baseline, Signals(100.0, 0.9, memory, 0.9), POLICY)
    return baseline


def load(path: Path, now_ns: int = NOW_NS) -> LoadOutcome:
    return load_baseline(path, POLICY, now_ns, MAX_AGE_S).outcome


def document(**changes: Any) -> str:
    averages = {"Throughput": 1.0, "Compute": 0.5, "Memory": 0.5, "CPU": 0.5}
    whole = {
        "schema_version": 1, "saved_at": "2026-11-15T02:32:00Z", "sample_count": 40,
        "fast_alpha": 0.1,
        "floor_alpha": 0.001, "fast_ema": averages, "hard_floor": averages,
    }  # fmt: skip
    return json.dumps({key: value for key, value in (whole | changes).items() if value != "absent"})


@pytest.mark.parametrize("missing_memory", [0, 7])
def test_round_trip(tmp_path: Path, missing_memory: int) -> None:
    path = tmp_path / "state" / "baseline.json"
    save_baseline(path, warm(missing_memory), POLICY, NOW_NS)
    loaded = load_baseline(path, POLICY, NOW_NS + 10**9, MAX_AGE_S)
    assert (loaded.outcome, loaded.baseline) == (LoadOutcome.FRESH, warm(missing_memory))
    assert [entry.name for entry in path.parent.iterdir()] == ["baseline.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_recorded_file_has_our_shape_key_by_key(tmp_path: Path) -> None:
    recorded = shared("data/ingero-wire/baseline.json")
    copy = tmp_path / "baseline.json"
    copy.write_bytes(recorded.read_bytes())
    loaded = load_baseline(copy, POLICY, NOW_NS + 60 * 10**9, MAX_AGE_S)
    assert loaded.baseline is not None
    save_baseline(copy, loaded.baseline, POLICY, NOW_NS)
    theirs, ours = json.loads(recorded.read_text()), json.loads(copy.read_text())
    assert ours | {"saved_at": theirs["saved_at"]} == theirs
    assert list(ours) == list(theirs)
    assert len(ours["saved_at"]) == len(theirs["saved_at"])


@pytest.mark.parametrize(
    ("age_s", "outcome", "is_kept"),
    [
        (300, LoadOutcome.FRESH, True),
        (1200, LoadOutcome.STALE, False),
        (-86400, LoadOutcome.STALE, False),
    ],
)
def test_age_vector_83(tmp_path: Path, age_s: int, outcome: LoadOutcome, is_kept: bool) -> None:
    path = tmp_path / "b.json"
    save_baseline(path, warm(), POLICY, NOW_NS - age_s * 10**9)
    assert load(path) is outcome
    assert path.exists() is is_kept


def test_newer_version_is_left_alone_vector_83(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"schema_version": 99, "whatever": []}')
    assert load(path) is LoadOutcome.NEWER_VERSION
    assert path.exists()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(document(schema_version="absent"), id="no-schema"),
        pytest.param(document(schema_version=0), id="old-schema"),
        pytest.param(document(schema_version=True), id="bool-schema"),
        pytest.param(document(sample_count=-5), id="negative-count"),
        pytest.param(
            document(fast_ema={"Throughput": -1, "Compute": 0, "Memory": 0, "CPU": 0}),
            id="negative",
        ),
        pytest.param(document(fast_ema={"Throughput": 1}), id="half"),
        pytest.param(document().replace("1.0", "1e400"), id="huge-literal"),
        pytest.param(document(saved_at="yesterday"), id="no-date"),
        pytest.param(document(saved_at="2026-11-15T02:32:00"), id="no-zone"),
        pytest.param(document(signal_samples=[1, 2, 3, 400]), id="counts-beyond-samples"),
        pytest.param("\ufeff" + document(), id="bom"),
        pytest.param(document() + "\0", id="nul"),
        pytest.param("[" * 200_000, id="deep"),
        pytest.param("", id="empty"),
        pytest.param("{}", id="empty-object"),
        pytest.param(" " * (2 << 20), id="oversize"),
    ],
)
def test_corrupt_files_are_set_aside_vector_83(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    assert load(path) is LoadOutcome.CORRUPT
    assert [entry.name.split("-")[0] for entry in tmp_path.iterdir()] == ["b.json.corrupt"]
    path.write_text(text)
    assert load(path) is LoadOutcome.CORRUPT  # in the same nanosecond
    assert len(list(tmp_path.iterdir())) == 2


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=300) | st.recursive(st.none() | st.floats() | st.text(),
st.lists).map(
    lambda tree: json.dumps({"schema_version": 1, "fast_ema": tree}).encode()
))  # fmt: skip
def test_any_bytes_are_survived(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(data)
    assert load(path) in (LoadOutcome.CORRUPT, LoadOutcome.NEWER_VERSION)


def test_missing_is_missing(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") is LoadOutcome.MISSING


def test_a_link_is_not_followed_and_its_target_survives(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("not a baseline")
    link = tmp_path / "b.json"
    link.symlink_to(target)
    assert load(link) is LoadOutcome.UNREADABLE
    assert target.read_text() == "not a baseline"
    save_baseline(link, warm(), POLICY, NOW_NS)
    assert target.read_text() == "not a baseline"


def test_pipes_and_devices_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert load(tmp_path / "pipe") is LoadOutcome.UNREADABLE
    assert load(tmp_path) is LoadOutcome.UNREADABLE


def test_other_factors_are_not_restored_vector_31(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    save_baseline(path, warm(), BaselinePolicy(fast_alpha=0.3, floor_alpha=0.01), NOW_NS)
    assert load(path) is LoadOutcome.OTHER_SETTINGS


def test_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.json"
    save_baseline(path, warm(), POLICY, NOW_NS)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        save_baseline(path, warm(3), POLICY, NOW_NS)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_concurrent_saves_and_loads_never_tear(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    save_baseline(path, warm(), POLICY, NOW_NS)

    def save() -> None:
        for _ in range(20):
            save_baseline(path, warm(), POLICY, NOW_NS)

    writers = [threading.Thread(target=save) for _ in range(2)]
    for writer in writers:
        writer.start()
    outcomes = {load(path) for _ in range(100)}
    for writer in writers:
        writer.join()
    assert outcomes == {LoadOutcome.FRESH}
    assert list(tmp_path.iterdir()) == [path]
