"""Bills of materials in CycloneDX: every Python and Debian package of an installation.

They name packages, versions and licences, and no addresses.
"""

import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from release.tree import commit_time

_NAMESPACE = uuid.UUID("7c9a5a0e-7d64-5c0e-9d0f-1a2b3c4d5e6f")


def bill_of(site: Path, name: str, version: str, root: Path | None = None) -> str:
    """Return the bill of a folder of Python packages and, with `root`, of a Debian file system."""
    components = [_python_component(found) for found in distributions(path=[str(site)])]
    if root is not None:
        components += _debian_components(root / "var/lib/dpkg/status")
    components.sort(key=lambda component: component["bom-ref"])
    listed = "\n".join(component["bom-ref"] for component in components)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{name} {version} {listed}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(commit_time(), UTC).isoformat(),
            "component": {"type": "application", "bom-ref": "root", "name": name}
            | {"version": version, "licenses": [{"license": {"id": "Apache-2.0"}}]},
        },
        "components": components,
        "dependencies": [{"ref": "root", "dependsOn": [c["bom-ref"] for c in components]}],
    }
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"


def _python_component(found: Distribution) -> dict[str, Any]:
    name = found.name.lower().replace("_", "-")
    purl = f"pkg:pypi/{name}@{found.version}"
    component = {"type": "library", "bom-ref": purl, "purl": purl, "name": name}
    return component | {"version": found.version, **_licences(found)}


def _licences(found: Distribution) -> dict[str, Any]:
    """Return the licence as the package declares it: an expression, classifiers or a short text."""
    fields = found.metadata
    expression = fields["License-Expression"]
    if expression:
        return {"licenses": [{"expression": expression}]}
    classifiers = [line for line in fields.get_all("Classifier") or [] if "License ::" in line]
    names = [line.rsplit(" :: ", 1)[-1] for line in classifiers]
    text = (fields["License"] or "").strip()
    if not names and text and len(text) < 80:
        names = [text]
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def _debian_components(status: Path) -> list[dict[str, Any]]:
    found = []
    for paragraph in status.read_text().split("\n\n"):
        fields = dict(_fields(paragraph.splitlines()))
        if "installed" in fields.get("Status", "").split():
            name, version, machine = (fields[k] for k in ("Package", "Version", "Architecture"))
            purl = f"pkg:deb/debian/{name}@{version}?arch={machine}"
            component = {"type": "library", "bom-ref": purl, "purl": purl, "name": name}
            found.append(component | {"version": version})
    return found


def _fields(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        if line and not line.startswith((" ", "\t")) and ":" in line:
            name, value = line.split(":", 1)
            yield name, value.strip()
