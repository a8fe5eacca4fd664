"""Notes that differ in file and number alone are one line."""

from hypothesis import example, given
from hypothesis import strategies as st

from ingero.cli.show.notes import merged_notes


def test_many_files_with_the_same_loss_are_one_line_where_the_first_stood() -> None:
    notes = [
        "a.tar/ring-1: 12,459 older records were overwritten",
        "a.tar/ring-1: 1 damaged record was left out",
        "a.tar/ring-2: 12,461 older records were overwritten",
        "a.tar/ring-3: 1 older record was overwritten",
        "a.tar/ring-3: 2 damaged records were left out",
        "present, but less exact: flight-recorder",
    ]
    assert merged_notes(notes) == [
        "in each of 3 files, 1 to 12,461 older records were overwritten",
        "a.tar/ring-1: 1 damaged record was left out",
        "a.tar/ring-3: 2 damaged records were left out",
        "present, but less exact: flight-recorder",
    ]


def test_equal_numbers_are_said_once_and_few_files_are_named() -> None:
    notes = [f"ring-{number}: 4 calls were dropped by the plugin" for number in range(3)]
    assert merged_notes(notes) == ["in each of 3 files, 4 calls were dropped by the plugin"]
    assert merged_notes(notes[:2]) == notes[:2]


@given(st.lists(st.text(st.sampled_from("a:, 1٣²"), max_size=12), max_size=6))
@example(["a: , b"])
@example([f"a: {'9' * 5000} b"])
@example(["ring-1: ,1 b", "ring-2: ,, b", "ring-3: 1, b"])
def test_names_of_files_may_look_like_numbers(notes: list[str]) -> None:
    """A member of an archive may have any name."""
    assert len(merged_notes(notes)) <= len(notes)
