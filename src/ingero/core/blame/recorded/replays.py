"""What slow ranks add to a step by a replay of the recording, where ranks meet in several groups.

Ranks that are slow at the same time are replayed together, over the steps in which they are: what a
rank costs in one part of a recording says nothing about another rank in another part.
"""

from collections.abc import Sequence

from ingero.core.blame.record_fixes import Fixer
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.recorded_job import RecordedJob


def charge_by_replay(job: RecordedJob, spells: Sequence[Spell]) -> list[tuple[Spell, float]]:
    """Return the spells that are no consequence of others, each with seconds per step of its own.

    Without a replay, the seconds are the own time over that of peers.
    """
    charged = []
    for cluster in cluster_spells(spells):
        steps = slice(min(s.begin for s in cluster), max(s.end for s in cluster))
        fixer = Fixer(job.collectives, job.measured, job.exact_ends, steps)
        needed = fixer.needed([spell.suspect for spell in cluster])
        kept = [spell for spell in cluster if spell.suspect in needed]
        lost_s = fixer.saved(needed) * (steps.stop - steps.start)
        total = sum(spell.mean_excess_s * len(spell) for spell in kept)
        for spell in kept:
            by_excess = not fixer.can_replay and job.exact_ends
            share = spell.mean_excess_s / total if total > 0 else 1 / len(spell) / len(kept)
            charged.append((spell, spell.mean_excess_s if by_excess else lost_s * share))
    return charged


def cluster_spells(spells: Sequence[Spell]) -> list[list[Spell]]:
    """Return groups of spells that overlap in time, directly or through others of the group."""
    clusters: list[list[Spell]] = []
    end = -1
    for spell in sorted(spells, key=lambda s: (s.begin, -s.suspect.excess)):
        if spell.begin >= end:
            clusters.append([])
        clusters[-1].append(spell)
        end = max(end, spell.end)
    return [sorted(each, key=lambda s: -s.suspect.excess) for each in clusters]
