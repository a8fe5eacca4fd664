"""Prometheus metrics of the kept episodes."""

from ingero.contract.exposition import Family, counter, gauge
from ingero.fleet.episodes.book import EpisodeBook
from ingero.fleet.episodes.files import EpisodeFiles


def episode_families(book: EpisodeBook, files: EpisodeFiles) -> list[Family]:
    """Return how many episodes and bytes are kept, and what was dropped."""
    dropped = {
        "episode": book.inputs.counters.dropped_episodes,
        "no_room": book.inputs.counters.dropped_no_room,
        "too_large": book.inputs.counters.dropped_too_large,
    }
    return [
        gauge("ingero_fleet_episodes", "Episodes kept", [((), float(len(book.episodes)))]),
        gauge(
            "ingero_fleet_episode_inputs_bytes",
            "Size of the inputs kept to replay episodes",
            [((), float(book.inputs.size_bytes))],
        ),
        counter(
            "ingero_fleet_episode_inputs_dropped_total",
            "Inputs of episodes that were not kept, by reason",
            [((("reason", reason),), value) for reason, value in dropped.items()],
        ),
        counter(
            "ingero_fleet_episode_write_failures_total",
            "Failed writes of episodes to state_dir",
            [((), files.failures)],
        ),
    ]
