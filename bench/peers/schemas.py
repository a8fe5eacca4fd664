"""Writes the schemas that kubeconform reads: of Kubernetes, from its own OpenAPI file, and of CRDs.

    python schemas.py SWAGGER.json CRDS SCHEMAS

Unknown fields are refused, as the API server refuses them with strict validation.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TEXT_OR_NUMBER = {"type": ["string", "number"]}
PREFIX = "#/definitions/"
# kinds that every group has and nobody writes
NOT_WRITTEN = ("DeleteOptions", "WatchEvent")


class Loader(yaml.SafeLoader):
    """Reads a single `=`, which a CRD lists as an operator, as text."""


Loader.add_constructor("tag:yaml.org,2002:value", Loader.construct_yaml_str)


def strict(schema: Any) -> Any:
    """Return a schema that refuses what it does not list."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return TEXT_OR_NUMBER
    found = {key: strict(value) for key, value in schema.items() if key != "description"}
    is_open = "additionalProperties" in found or found.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(found.get("properties"), dict) and not is_open:
        found["additionalProperties"] = False
    return found


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(PREFIX)
        schema = list(schema.values())
    for each in schema if isinstance(schema, list) else ():
        yield from references(each)


def file_name(kind: str, group: str, version: str) -> str:
    short = f"{group.split('.', maxsplit=1)[0]}-" if group else ""
    return f"{kind}-{short}{version}.json".lower()


def of_kubernetes(swagger: Path) -> Iterator[tuple[str, Any]]:
    definitions = strict(json.loads(swagger.read_bytes())["definitions"])
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = TEXT_OR_NUMBER
    for name, schema in definitions.items():
        needed: dict[str, Any] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each not in needed:
                needed[each] = definitions[each]
                waiting += references(definitions[each])
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            if kind["kind"] in NOT_WRITTEN or kind["kind"].endswith("List"):
                continue
            named = file_name(kind["kind"], kind["group"], kind["version"])
            yield named, {"$ref": f"{PREFIX}{name}", "definitions": needed}


def of_crds(folder: Path) -> Iterator[tuple[str, Any]]:
    for file in sorted(folder.glob("*.yaml")):
        for document in yaml.load_all(file.read_text(), Loader):
            if not document or document["kind"] != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                yield file_name(spec["names"]["kind"], spec["group"], version["name"]), schema


def main() -> None:
    swagger, crds, target = map(Path, sys.argv[1:])
    target.mkdir(parents=True, exist_ok=True)
    for name, schema in [*of_kubernetes(swagger), *of_crds(crds)]:
        (target / name).write_text(json.dumps(schema))


if __name__ == "__main__":
    main()
