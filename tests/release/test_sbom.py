"""The bill of materials lists what is installed, whole, and is the same every time (F100)."""

import json
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from release.sbom import bill_of

SITE = next(Path(path) for path in sys.path if path.endswith("site-packages"))
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Description: a library
 of several lines: here

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def test_f100_every_python_package_is_listed_with_its_licence() -> None:
    bill = json.loads(bill_of(SITE, "ingero", "1.2.3"))
    found = {component["name"] for component in bill["components"]}
    assert found == {d.name.lower().replace("_", "-") for d in distributions(path=[str(SITE)])}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    licensed = [c for c in bill["components"] if c.get("licenses")]
    assert len(licensed) >= 0.9 * len(bill["components"])
    assert not any("://" in component["purl"] for component in bill["components"])


def test_debian_packages_that_are_installed_are_listed(tmp_path: Path) -> None:
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(STATUS)
    bill = json.loads(bill_of(tmp_path, "ingero", "1.2.3", tmp_path))
    assert [c["purl"] for c in bill["components"]] == ["pkg:deb/debian/libc6@2.36-9?arch=amd64"]


def test_two_bills_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert bill_of(SITE, "ingero", "1") == bill_of(SITE, "ingero", "1")
