"""Recorded inputs give the same verdicts byte for byte, with reasons for all other ranks."""

import contextlib
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.verdict_pushes import START_S, own_time_push

from ingero.cli.dispatch import run
from ingero.config.rates import load_rates
from ingero.contract.exposition import render
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.verdict import encode_one
from ingero.core.verdict.policy import VerdictPolicy
from ingero.errors import ForeignFile, IngeroError
from ingero.fleet.episodes.preamble import encode_preamble
from ingero.fleet.metrics import recording_families
from ingero.fleet.replay import replay
from ingero.fleet.verdicts import VerdictService
from ingero.storage.input_log import PUSH, TICK, VERDICT, InputLog, list_files, read_inputs


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Record a job of four ranks, of which one becomes 20 % slower, as Fleet does."""
    folder = tmp_path / "inputs"
    policy = VerdictPolicy(warmup_samples=50)
    log = InputLog(folder, encode_preamble(load_rates(), policy))
    service, rng = VerdictService(load_rates(), policy), np.random.default_rng(5)
    for second in range(140):
        for rank in range(4):
            own = (
                500
                * (1.2 if rank == 2 and second > 110 else 1.0)
                * float(np.exp(rng.normal(0, 0.005)))
            )
            request = own_time_push(f"n{rank}", rank, second, own)
            log.write(PUSH, START_S + second, "c", encode_protobuf(request))
            service.take(request, "c", START_S + second)
        log.write(TICK, START_S + second)
        for cluster, verdict in service.tick(START_S + second):
            log.write(VERDICT, START_S + second, cluster, encode_one(verdict))
    log.close()
    return folder


def test_replay_gives_the_same_verdicts_and_why_others_were_not_blamed(recorded: Path) -> None:
    result = replay(recorded)
    assert result.is_same
    assert {each.verdict.node for each in result.verdicts} == {"n2"}
    assert str(result.verdicts[-1].verdict.state) == "straggler"
    assert {peer.reason for peer in result.verdicts[0].peers} == {
        "below its limit: as fast as its peers"
    }
    assert len(result.verdicts[0].peers) == 3


def test_the_command_shows_one_episode(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode = replay(recorded).verdicts[0].verdict.episode
    assert run(["replay", episode, "--dir", str(recorded)]) == 0
    shown = capsys.readouterr().out
    assert "below its limit" in shown
    assert "every verdict is the same as recorded" in shown
    assert run(["replay", str(recorded), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    assert run(["replay", "0" * 16, "--dir", str(recorded)]) == 1


def test_a_recorded_verdict_that_does_not_come_out_again_is_reported(recorded: Path) -> None:
    log = InputLog(recorded)
    log.write(VERDICT, START_S, "c", b'{"episode":"x","state":"straggler","node":"n9","since":1.0}')
    log.close()
    assert [verdict.node for verdict in replay(recorded).missing] == ["n9"]


def test_files_are_bounded_and_a_cut_file_ends_with_its_last_whole_frame(tmp_path: Path) -> None:
    log = InputLog(tmp_path, max_bytes=8000, files=4)
    for number in range(100):
        log.write(PUSH, float(number), "c", b"x" * 500)
    log.close()
    assert len(list_files(tmp_path)) == 4
    page = render(recording_families(log)).decode()
    assert f"ingero_fleet_recorded_files_removed_total {log.removed}" in page
    assert log.removed > 0
    last = list_files(tmp_path)[-1]
    before = len(list(read_inputs(tmp_path)))
    last.write_bytes(last.read_bytes()[:-3])
    assert len(list(read_inputs(tmp_path))) == before - 1


def test_a_folder_without_recordings_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ForeignFile, match="--record-inputs"):
        list(read_inputs(tmp_path))


def test_a_damaged_recording_is_reported_with_file_and_byte(tmp_path: Path) -> None:
    log = InputLog(tmp_path)
    log.write(TICK, START_S)
    log.close()
    [file] = list_files(tmp_path)
    data = bytearray(file.read_bytes())
    data[13] = 0xC1  # MessagePack never uses it
    file.write_bytes(data)
    with pytest.raises(
        ForeignFile, match=r"inputs-00000001\.rec is damaged at byte 13: .*; move it away"
    ):
        list(read_inputs(tmp_path))


def test_pipes_and_devices_in_place_of_a_recording_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "inputs-00000001.rec")
    (tmp_path / "zero").mkdir()
    (tmp_path / "zero" / "inputs-00000001.rec").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        assert run(["replay", str(tmp_path / name)]) == 1
        assert f"{name}/inputs-00000001.rec: not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [(VERDICT, b"{}", "a recorded verdict of c"), (PUSH, b"\xff\xff", "not an OTLP"),
     (VERDICT, b"[" * 100_000, "a recorded verdict of c")],
)  # fmt: skip
def test_damaged_frames_are_reported_with_their_folder(
    kind: str, body: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = InputLog(tmp_path)
    log.write(kind, START_S, "c", body)
    log.close()
    assert run(["replay", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line
    assert reason in line


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(
    st.sampled_from([PUSH, TICK, VERDICT, "rates", "?"]), st.floats(), st.text(max_size=4),
    st.binary(max_size=80),
), max_size=6))  # fmt: skip
def test_any_frames_are_replayed_or_refused(frames: list[tuple[str, float, str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = InputLog(Path(folder))
        for frame in frames:
            log.write(*frame)
        log.close()
        with contextlib.suppress(IngeroError):
            replay(Path(folder))
