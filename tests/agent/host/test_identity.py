"""The identity of a node: its cgroup and its provider."""

from pathlib import Path

import pytest

from ingero.agent.host import identity


def test_cgroup_paths_vectors_77_78() -> None:
    assert (
        identity.parse_cgroup_path("12:cpu:/a/b\n0::/kubepods.slice/x.scope\n")
        == "/kubepods.slice/x.scope"
    )
    assert identity.parse_cgroup_path("12:cpu:/a\n3:memory:/a/longer\n") == "/a/longer"
    assert identity.parse_cgroup_path("") == ""
    hashes = [
        identity.hash_cgroup_path(path)
        for path in ("/kubepods.slice/pod-A", "/kubepods.slice/pod-B", "/", "")
    ]
    assert hashes == ["d18f7fc5789b33dd", "0a3e8e026b71a6b7", "8a5edab282632443", ""]
    assert identity.cgroup_hash(2**31 - 1) == ""
    assert len(identity.cgroup_hash()) in (0, 16)
    assert identity.container_id("/docker/" + "a" * 64 + "/" + "b" * 64) == "b" * 64


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys_vendor": "Amazon EC2\n"}, "aws"),
        ({"sys_vendor": "Google\n"}, "gcp"),
        (
            {"sys_vendor": "Microsoft", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"},
            "azure",
        ),
        ({"sys_vendor": "Microsoft", "chassis_asset_tag": "x"}, None),
        ({}, None),
    ],
)
def test_provider_is_read_off_the_machine(
    tmp_path: Path, files: dict[str, str], expected: str | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert identity.provider(tmp_path) == expected
