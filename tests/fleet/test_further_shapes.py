"""Jobs of rare shapes through agent and Fleet: each was told wrong once."""

import pytest
from tests.support.live_score import Answer, ask, describe


@pytest.mark.parametrize(
    ("shape", "seed", "fault"),
    [
        ("few", 9522, "gpu"),  # two ranks: which of them the other waits for
        ("broadcast data", 9521, "host"),  # the other one of its group only waits for its data
        ("deep norms", 9521, "gpu"),  # many small collectives, and two equal buckets
        ("embeddings", 9521, "host"),  # the sleep lies between two exchanges
        ("barriers", 9521, "host"),  # hosts wait for each other where the step ends
    ],
)
def test_rank_class_and_loss_are_right_and_nobody_else_is_named(
    shape: str, seed: int, fault: str
) -> None:
    """F067: what was wrong is said beside each job."""
    answer: Answer = ask(shape, seed, fault)
    assert not answer.wrong, describe(answer)
