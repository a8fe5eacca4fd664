"""The state of an engine as bytes: it goes on as before, or it is refused."""

import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.verdict_pushes import START_S, collectives_cache

from ingero.contract.measurements.collectives import encode_collectives
from ingero.contract.verdict import encode_one
from ingero.errors import ForeignFile
from ingero.fleet.episodes.state_codec import (
    decode_state,
    digest_of_sources,
    encode_state,
    made_by,
)
from ingero.fleet.verdicts import VerdictService


def test_a_state_in_the_middle_of_a_job_of_collectives_gives_the_same_verdicts() -> None:
    """The engine, the matcher, roles and steps: everything that a push changes is in the state."""
    rng, service, copied = np.random.default_rng(2), VerdictService(), VerdictService()
    found: dict[int, list[bytes]] = {0: [], 1: []}
    for second in range(140):
        if second == 100:
            copied.clusters["c"] = decode_state(encode_state(service.clusters["c"]))
        for node in range(4):
            mine = collectives_cache(second, 3 if second >= 110 else None, rng, False, node)
            request = encode_collectives(mine, "c", f"n{node}")
            for each in (service, copied) if second >= 100 else (service,):
                each.take(request, "c", START_S + second)
        found[0] += [encode_one(verdict) for _, verdict in service.tick(START_S + second)]
        if second >= 100:
            found[1] += [encode_one(verdict) for _, verdict in copied.tick(START_S + second)]
    assert found[0] == found[1] != []


@settings(max_examples=200, deadline=None)
@given(st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=3)
    | st.sampled_from(["object", "struct", "enum", "array", "number", "tuple", "again", "dict",
                       "list", "os:system", "ingero.core.verdict.engine:VerdictEngine", "<f8"]),
    lambda inner: st.lists(inner, max_size=4), max_leaves=12,
))  # fmt: skip
def test_a_hostile_state_is_refused(content: object) -> None:
    with pytest.raises(ForeignFile, match="damaged"):
        decode_state(zlib.compress(msgspec.msgpack.encode([made_by(), content])))


@given(st.binary(max_size=200))
def test_what_is_no_state_is_refused(data: bytes) -> None:
    for content in (data, zlib.compress(data)):
        with pytest.raises(ForeignFile):
            decode_state(content)


def test_a_state_of_another_version_names_both_versions() -> None:
    with pytest.raises(ForeignFile, match=r"kept by version 0\.0\.1, and this is"):
        decode_state(zlib.compress(msgspec.msgpack.encode(["0.0.1", None])))


@pytest.mark.parametrize(
    ("source", "is_part"),
    [("core/verdict/table.py", True), ("core/verdict/events/moves.py", True),
     ("fleet/cluster_verdicts.py", True), ("core/cost.py", False)],
)  # fmt: skip
def test_a_state_is_of_another_build_where_a_source_of_its_classes_differs(
    tmp_path: Path, source: str, is_part: bool
) -> None:
    for name in ("core/verdict/table.py", "fleet/cluster_verdicts.py", "fleet/causes/book.py"):
        (tmp_path / "ingero" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ingero" / name).write_text("class Rows: ...\n")
    before = digest_of_sources(tmp_path / "ingero")
    (tmp_path / "ingero" / source).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "ingero" / source).write_text("class Rows:\n    excused = 0.0\n")
    assert (digest_of_sources(tmp_path / "ingero") != before) == is_part
