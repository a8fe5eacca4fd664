"""Every fuzz target holds on its corpus and on what hypothesis draws."""

import importlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(__file__).parent
TARGETS = sorted(
    path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__main__", "test_targets")
)


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_of_a_target_holds(target: str) -> None:
    module = importlib.import_module(f"tests.fuzz.{target}")
    files = sorted((FOLDER / "corpus" / target).iterdir())
    assert files
    for file in files:
        module.fuzz(file.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@given(st.binary(max_size=200))
def test_a_target_holds_for_any_bytes(target: str, data: bytes) -> None:
    importlib.import_module(f"tests.fuzz.{target}").fuzz(data)
