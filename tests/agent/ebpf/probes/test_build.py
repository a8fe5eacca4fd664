"""F026, F129: committed probes match their sources, and what `make probes` builds works."""

from pathlib import Path

import pytest

from ingero.agent.ebpf import layout
from ingero.agent.ebpf.loader.btf import STRUCT, Btf
from ingero.agent.ebpf.loader.elf import ElfFile
from ingero.agent.ebpf.probes.build import SOURCES, TARGETS, build, object_path, source_digest

STRUCTS = {
    "event": layout.EVENT,
    "nccl_event": layout.NCCL_EVENT,
    "slot": layout.SLOT,
    "waits": layout.WAITS,
    "func": layout.FUNC,
    "target": layout.TARGET,
}


def section(path: Path, name: str) -> bytes:
    elf = ElfFile(str(path))
    try:
        found = elf.section(name)
        assert found is not None
        return elf.content(found)
    finally:
        elf.close()


@pytest.mark.parametrize("machine", TARGETS)
def test_committed_object_is_not_stale(machine: str) -> None:
    digest = section(object_path(machine), "ingero.digest").rstrip(b"\0").decode()
    assert digest == source_digest(), "the probes changed: run `make probes` and commit the objects"


@pytest.mark.parametrize("machine", TARGETS)
def test_license_lets_the_kernel_offer_its_helpers(machine: str) -> None:
    assert section(object_path(machine), "license") == b"Dual BSD/GPL\0"


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize("name", STRUCTS)
def test_numpy_types_match_the_structs_of_the_object(machine: str, name: str) -> None:
    btf = Btf(section(object_path(machine), ".BTF"))
    number = btf.find([name], STRUCT)[name]
    dtype = STRUCTS[name]
    assert btf.type(number).size == dtype.itemsize
    offsets = {field: bits // 8 for field, _, bits in btf.members(number)}
    inner = btf.members(btf.find(["event"], STRUCT)["event"])
    if name == "nccl_event":
        offsets = {field: bits // 8 for field, _, bits in inner} | {
            "comm_hash" if field == "comm" else field: at
            for field, at in offsets.items()
            if field != "event"
        }
    fields = dtype.fields
    assert fields is not None
    assert {field: spot[1] for field, spot in fields.items()} == offsets


def test_rebuilding_needs_only_the_wheel_and_gives_objects_with_the_same_programs(
    tmp_path: Path,
) -> None:
    made = build(tmp_path)
    assert [path.name for path in made] == ["trace.x86_64.o", "trace.aarch64.o"]
    for path in made:
        committed = ElfFile(str(SOURCES / path.name))
        fresh = ElfFile(str(path))
        assert [one.name for one in fresh.sections] == [one.name for one in committed.sections]
        fresh.close()
        committed.close()
