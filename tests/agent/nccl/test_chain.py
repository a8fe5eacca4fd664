"""A second profiler plugin behind ours (INGERO_NCCL_NEXT_PLUGIN): each gets what it asked for."""

import shutil
from pathlib import Path

import pytest
from tests.support.compiler import compile_c
from tests.support.nccl_jobs import Job

from ingero.agent.nccl.reader import RingReader
from ingero.contract.nccl_ring import FLAG_STREAM

NEXT_SOURCE = Path(__file__).parents[2] / "support" / "nccl_next.c"
GROUP, COLL, P2P, CHANNEL = 1, 2, 4, 64
GROUP_API, COLL_API, P2P_API, COPY_ENGINE = 256, 512, 1024, 4096
PARENTS = GROUP | P2P_API | COLL_API | GROUP_API
COUNTS = {  # of `basic` with 20 steps: starts and stops of each kind
    GROUP: (40, 40), COLL: (40, 40), P2P: (3, 3), CHANNEL: (83, 83), GROUP_API: (40, 40),
    COLL_API: (40, 40), P2P_API: (3, 0), COPY_ENGINE: (1, 1),
}  # fmt: skip


@pytest.fixture(scope="session")
def build_next(tmp_path_factory):
    folder = tmp_path_factory.mktemp("next")

    def build(only: int | None = None) -> Path:
        target = folder / f"libnccl-profiler-second{only or ''}.so"
        if not target.exists():
            flags = [f"-DONLY={only}"] if only else []
            compile_c(NEXT_SOURCE, target, "-std=c11", "-O1", "-fPIC", "-shared", *flags)
        return target

    return build


class Chain:
    """Runs `basic` with a next plugin; returns our records and what the next one has counted."""

    def __init__(self, host: Path, plugin: Path, folder: Path) -> None:
        self.host, self.plugin, self.folder = host, plugin, folder

    def run(self, next_plugin: Path | str, version: int, asked: int = 0, **environment: str):
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        chained = {
            "INGERO_NCCL_NEXT_PLUGIN": str(next_plugin),
            "NEXT_LOG": str(log),
            "NEXT_MASK": str(asked),
            "EXPECT_NEXT": str(asked),
        }
        rings = self.folder / "rings"
        shutil.rmtree(rings, ignore_errors=True)
        command = [self.host, self.plugin]
        with Job(command, rings, "basic", 20, version, **(chained | environment)) as job:
            records = [RingReader(path).poll(0.0) for path in sorted(rings.iterdir())]
            job.finish()
        return records, _parse(log.read_text()) if log.exists() else None


def _parse(text: str) -> dict[str | int, object]:
    rows = [line.split() for line in text.splitlines()]
    counts = {1 << int(kind): tuple(map(int, rest)) for kind, *rest in rows if kind.isdigit()}
    return {"counts": counts} | {name: int(rest[0]) for name, *rest in rows if not name.isdigit()}


@pytest.fixture
def chain(host, plugin, tmp_path):
    return Chain(host, plugin, tmp_path)


def expected(version: int, kinds: int) -> dict[int, tuple[int, int]]:
    known = {4: 255, 5: 4095, 6: (1 << 30) - 1}[version]
    return {kind: counts for kind, counts in COUNTS.items() if kind & kinds & known}


@pytest.mark.parametrize("version", [4, 5, 6])
def test_both_plugins_see_every_event_with_their_own_handles(chain, build_next, version):
    asked = COLL | CHANNEL
    (records,), seen = chain.run(build_next(), version, asked)
    assert len(records) == 43 + (version == 6)
    assert (records["gpu_stop_ns"] > records["gpu_start_ns"])[:40].all()
    if version > 4:
        assert (records["flags"][:40] & FLAG_STREAM).all()
    assert seen is not None
    assert seen["counts"] == expected(version, COLL | P2P | CHANNEL | PARENTS)
    assert (seen["states"], seen["wrong"]) == (83, 0)
    assert (seen["parents"], seen["groups"]) == ((123, 0) if version == 4 else (206, 40))


@pytest.mark.parametrize("mode", ["tagged", "blank"])
def test_handles_and_contexts_of_any_form_are_kept(chain, build_next, mode):
    _, seen = chain.run(build_next(), 5, COLL | CHANNEL, NEXT_MODE=mode)
    assert seen is not None
    assert seen["counts"] == expected(5, COLL | P2P | CHANNEL | PARENTS)
    assert (seen["states"], seen["parents"], seen["wrong"]) == (83, 206, 0)


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [(0, 0), (GROUP_API, GROUP_API), (P2P, P2P | GROUP | P2P_API | GROUP_API),
     (COPY_ENGINE, COPY_ENGINE | COLL_API | GROUP_API)],
)  # fmt: skip
def test_the_next_plugin_gets_only_what_it_asked_for(chain, build_next, asked, kinds):
    (records,), seen = chain.run(build_next(), 6, asked)
    assert len(records) == 44
    assert seen is not None
    assert (seen["counts"], seen["wrong"]) == (expected(6, kinds), 0)


@pytest.mark.parametrize(("host_version", "only"), [(6, 5), (6, 4), (5, 4)])
def test_an_older_plugin_serves_a_newer_nccl(chain, build_next, host_version, only):
    asked = COLL | CHANNEL
    (records,), seen = chain.run(build_next(only), host_version, asked)
    assert len(records) == 43 + (host_version == 6)
    assert seen is not None
    assert seen["counts"] == expected(only, COLL | P2P | CHANNEL | PARENTS)
    assert (seen["parents"], seen["wrong"]) == (123 if only == 4 else 206, 0)


def test_without_a_ring_the_next_plugin_still_runs(chain, build_next, tmp_path):
    elsewhere = str(tmp_path / "missing")
    asked = {"EXPECT_OFF": "1", "INGERO_NCCL_RING_DIR": elsewhere}
    rings, seen = chain.run(build_next(), 5, COLL | CHANNEL, **asked)
    assert rings == []
    assert seen is not None
    assert (seen["counts"][COLL], seen["states"], seen["wrong"]) == ((40, 40), 83, 0)


@pytest.mark.parametrize("mode", ["deaf", "sour"])
def test_a_plugin_that_fails_costs_only_its_own_view(chain, build_next, mode):
    asked = COLL | CHANNEL
    expecting = {"EXPECT_NEXT": "0"} if mode == "deaf" else {}
    (records,), seen = chain.run(build_next(), 5, asked, NEXT_MODE=mode, **expecting)
    assert len(records) == 43
    assert seen is None or (seen["counts"], seen["wrong"]) == ({}, 0)


def test_what_is_no_plugin_is_left_alone(chain, build_next, plugin):
    for name in ("/nonexistent/x.so", "libc.so.6", str(plugin), "x" * 5000):
        (records,), seen = chain.run(name, 5)
        assert (len(records), seen) == (43, None)
    (records,), seen = chain.run(build_next(5), 4)
    assert (len(records), seen) == (43, None), "it lacks the version that this NCCL speaks"


def test_the_short_name_of_a_plugin_is_enough(chain, build_next):
    second = build_next()
    _, seen = chain.run("second", 5, COLL, LD_LIBRARY_PATH=str(second.parent))
    assert seen is not None
    assert seen["counts"][COLL] == (40, 40)


def test_a_second_copy_of_ours_records_the_same(chain, plugin, tmp_path):
    copy = tmp_path / "copy.so"
    shutil.copy(plugin, copy)
    rings, _ = chain.run(copy, 5, COLL | P2P | CHANNEL)
    assert [len(records) for records in rings] == [43, 43]
    assert (rings[0]["count"] == rings[1]["count"]).all()
    assert (rings[0]["gpu_stop_ns"] == rings[1]["gpu_stop_ns"]).all()
