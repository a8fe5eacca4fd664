"""What the demo and its keys say about a verdict."""

import msgspec
import pytest

from ingero.cli.commands.demos import job, keys
from ingero.contract.verdict import Verdict, VerdictState

SLOW = Verdict(
    episode="e", state=VerdictState.STRAGGLER, node="n1", rank=3, job="j", since=0.0, loss=0.1,
    evidence="own time +14.5% against the median of 63 peers, " * 3, next_step="swap the node",
)  # fmt: skip


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_every_line_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "screen_columns", lambda: columns)
    lines = "\n".join(job._verdict_lines(SLOW, 6.6)).split("\n")
    assert max(map(len, lines)) <= min(columns, job.WIDTH)
    assert all(line.startswith(" " * 9) for line in lines[1:])
    assert " ".join(SLOW.evidence.split()) in " ".join(" ".join(lines).split())


class Cluster:
    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = verdicts

    def judged(self) -> "Cluster":
        return self


def test_a_rank_that_recovers_is_still_slow_until_its_episode_ends() -> None:
    said: list[str] = []
    recovering = msgspec.structs.replace(SLOW, state=VerdictState.RECOVERING)
    assert keys._tell(Cluster(recovering), {3}, said.append) == {3}
    assert keys._tell(Cluster(recovering), set(), said.append) == set()
    assert said == []
    assert keys._tell(Cluster(), {3}, said.append) == set()
    assert "rank 3 is not slow any more" in said[0]


@pytest.mark.parametrize(
    ("ready_s", "left"),
    [(None, ""), (0.0, ""), (0.4, ", about 1 s left"), (9.0, ", about 3 s left")],
)
def test_no_second_is_left_when_it_is_over(ready_s: float | None, left: str) -> None:
    """Its clock runs four times as fast."""
    assert job._left(ready_s, 4.0) == left
