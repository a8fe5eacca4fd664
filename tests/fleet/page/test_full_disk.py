"""A full or read-only disk under Fleet's state_dir: the page goes on, and nothing is cut short."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.live_page import advance, put, slow_rank, watching
from tests.support.pushes import NEVER_S, running
from tests.support.small_disk import mounted, remount

from ingero.errors import StoreError


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, "256k") as folder:
        yield folder


def state_in(folder: Path) -> dict[str, object]:
    return {"ingero": {"verdict": {"state_dir": str(folder)}}}


def fill(folder: Path) -> Path:
    """Leave no room for even one more file."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


@pytest.mark.parametrize("problem", ["No space left on device", "Read-only file system"])
async def test_the_page_shows_episodes_that_the_disk_cannot_take(
    disk: Path, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tick_s=NEVER_S, processors=state_in(disk)) as fleet:
        ballast = fill(disk)
        if problem.startswith("Read-only"):
            ballast.unlink()
            remount(disk, "ro")
        put(fleet, "n5", 0.9, "c")
        advance(fleet, 0)
        with caplog.at_level(logging.ERROR):
            async with watching(fleet, "?cluster_id=c&job_id=j") as reader:
                await reader.tick()
                seen = await slow_rank(fleet, reader)
                for _ in range(3):
                    await fleet.judgement.settle()
                advance(fleet)
                assert await reader.tick(), "the stream goes on"
        said = [record for record in caplog.records if record.msg == "episodes_not_written"]
        assert len(said) == 1, "once, not every second"
        assert problem in said[0].__dict__["why"]
        assert fleet.judgement.episode_files.failures == 3
        assert "straggler" in {str(verdict.state) for verdict in seen["verdicts"]}
        assert list((disk / "episodes").iterdir()) == [], "nothing is left half written"
        remount(disk, "rw", "size=8m")
        await fleet.judgement.settle()
        (kept,) = (disk / "episodes").iterdir()
        assert kept.suffix == ".episode"


async def test_a_folder_that_cannot_be_used_ends_the_start_with_a_sentence(disk: Path) -> None:
    remount(disk, "ro")
    with pytest.raises(StoreError, match=r"cannot use .*episodes: Read-only file system"):
        async with running(tick_s=NEVER_S, processors=state_in(disk)):
            pass
