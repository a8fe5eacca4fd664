"""Every feature that a test cites by id is on the list, and every listed feature has its test."""

from tests.support.features import PAGE, PLANNED, cited, listed, updated_page


def test_every_cited_feature_is_listed() -> None:
    assert sorted(cited().keys() - listed().keys()) == []


def test_every_listed_feature_has_a_test() -> None:
    assert [number for number, (_, tests) in listed().items() if tests == PLANNED] == []


def test_the_list_names_the_tests_as_they_are() -> None:
    """`python -m tests.support.features` brings the page up to date."""
    assert PAGE.read_text() == updated_page()
