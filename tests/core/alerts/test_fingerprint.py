"""Fingerprints as Prometheus and Alertmanager compute them."""

import pytest

from ingero.core.alerts.fingerprint import fingerprint_of


@pytest.mark.parametrize(
    ("labels", "published"),
    [
        ({}, 14695981039346656037),
        ({"name": "garland, briggs", "fear": "love is not enough"}, 5799056148416392346),
    ],
)
def test_a_fingerprint_is_the_published_signature_of_the_labels(
    labels: dict[str, str], published: int
) -> None:
    assert fingerprint_of(labels) == f"{published:016x}"
    assert fingerprint_of(dict(reversed(labels.items()))) == f"{published:016x}"


def test_labels_do_not_run_into_each_other() -> None:
    found = {fingerprint_of(each) for each in ({"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""})}
    assert len(found) == 3
