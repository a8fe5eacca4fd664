"""Which annotations apply to an event."""

from hypothesis import given
from hypothesis import strategies as st

from ingero.core.recording.event_labels import StoredAnnotation, label_events


def moment(at: int, pid: int = 0, **labels: str) -> StoredAnnotation:
    return StoredAnnotation((at, at), pid, at, None, labels)


def span(written: int, start: int, end: int, pid: int = 0, **labels: str) -> StoredAnnotation:
    return StoredAnnotation((written, written), pid, start, end, labels)


def test_a_moment_applies_from_then_on_and_later_ones_override_key_by_key() -> None:
    notes = [moment(10, step="1", phase="warm"), moment(20, step="2")]
    assert label_events(notes, {}, [(7, 25), (7, 9), (7, 10)]) == [
        {"step": "2", "phase": "warm"},
        {},
        {"step": "1", "phase": "warm"},
    ]


def test_a_span_applies_between_its_ends_even_when_written_afterwards() -> None:
    notes = [span(50, 10, 20, phase="eval")]
    found = label_events(notes, {}, [(1, at) for at in (9, 10, 20, 21)])
    assert found == [{}, {"phase": "eval"}, {"phase": "eval"}, {}]


def test_an_annotation_of_a_process_does_not_apply_to_another() -> None:
    notes = [moment(10, pid=7, step="1"), moment(11, step="node")]
    assert label_events(notes, {}, [(7, 12), (8, 12), (0, 12)]) == [{"step": "node"}] * 3
    assert label_events(notes[:1], {}, [(7, 12), (8, 12)]) == [{"step": "1"}, {}]


def test_an_annotation_of_a_process_ends_with_its_program() -> None:
    """Two unknown runs match; two different runs do not."""
    notes = [moment(10, pid=7, step="1"), moment(12, host="h")]
    assert label_events(notes, {7: [20]}, [(7, 19), (7, 20)]) == [
        {"step": "1", "host": "h"},
        {"host": "h"},
    ]
    assert label_events(notes, {7: [5, 30]}, [(7, 29)]) == [{"step": "1", "host": "h"}]
    spans = [span(40, 10, 30, pid=7, phase="train")]
    assert label_events(spans, {7: [20]}, [(7, 15), (7, 25)]) == [{"phase": "train"}, {}]


TIMES = st.integers(0, 30)
NOTES = st.lists(
    st.builds(
        lambda at, pid, length, key, value, number: StoredAnnotation(
            (at, number), pid, at, None if length is None else at + length, {key: value}
        ),
        TIMES, st.integers(0, 2), st.none() | st.integers(0, 10), st.sampled_from("ab"),
        st.sampled_from("xyz"),
        st.integers(0, 10**6),
    ),
    max_size=12, unique_by=lambda note: note.order[1],
)  # fmt: skip


@given(
    NOTES, st.lists(TIMES, max_size=3), st.lists(st.tuples(st.integers(0, 2), TIMES), max_size=8)
)
def test_the_sweep_agrees_with_the_rules_applied_one_by_one(notes, turns, events) -> None:
    turning = {1: sorted(turns)}

    def plain(pid: int, at: int) -> dict[str, str]:
        labels: dict[str, str] = {}
        for note in sorted(notes, key=lambda one: one.order):
            same_run = not any(
                min(note.from_ns, at) < turn <= max(note.from_ns, at)
                for turn in turning.get(pid, [])
            )
            inside = note.from_ns <= at and (note.to_ns is None or at <= note.to_ns)
            if inside and (note.pid == 0 or (note.pid == pid and same_run)):
                labels |= note.labels
        return labels

    assert label_events(notes, turning, events) == [plain(pid, at) for pid, at in events]
