"""Notes that differ in file and number alone are one line."""

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
