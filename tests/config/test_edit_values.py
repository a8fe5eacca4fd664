"""Values of a YAML file are set and removed without touching anything else."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ingero.config.edit_values import change_file, set_value
from ingero.errors import ConfigError

TEXTS = (
    "",
    "# only a remark\n",
    "fleet:\n",
    "fleet: {}\n",
    "fleet: {endpoint: a, tls: {ca: x}}\nagent: {node: n}\n",
    "agent:\n  node: n   # mine\nfleet:\n    cluster_id: c\n    tls:\n        ca: /x\n",
    "agent:\n  node: n",
    "fleet:\n  endpoint: a # old\n  nodes: [a, b]\n",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("key", "value"),
    [("fleet.endpoint", "https://f:1"), ("fleet.tls.ca", "/new"), ("agent.api.listen", ":80")],
)
def test_a_value_is_set_and_everything_else_stays(text: str, key: str, value: str) -> None:
    path = tuple(key.split("."))
    changed = set_value(text, path, value)
    document = yaml.safe_load(changed)
    for name in path:
        document = document[name]
    assert document == value
    for line in text.splitlines():
        if "#" in line:
            assert line.partition("#")[2] in changed
    assert set_value(changed, path, value) == changed


@pytest.mark.parametrize("text", TEXTS)
def test_a_value_that_is_removed_again_leaves_what_was_there(text: str) -> None:
    key = ("agent", "api", "listen")
    changed = set_value(set_value(text, key, ":80"), key, None)
    assert (yaml.safe_load(changed) or {}) == (yaml.safe_load(text) or {})


def test_block_style_is_restored_to_the_letter() -> None:
    text = "agent:\n  record: false\nfleet:\n  timeout: 1s # short\n"
    keys = [("agent", "api", "listen"), ("fleet", "tls", "ca"), ("fleet", "endpoint")]
    changed = text
    for key in keys:
        changed = set_value(changed, key, "v")
    for key in keys:
        changed = set_value(changed, key, None)
    assert changed == text


def test_a_file_that_would_not_load_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "ingero.yaml"
    file.write_text("agent:\n  node: n\n")
    with pytest.raises(ConfigError):
        change_file(file, {"agent.misspelt": "x"})
    assert file.read_text() == "agent:\n  node: n\n"


def test_what_was_there_is_returned(tmp_path: Path) -> None:
    file = tmp_path / "ingero.yaml"
    file.write_text("agent:\n  node: n\n")
    assert change_file(file, {"agent.node": "m", "fleet.endpoint": "https://f:4318"}) == {
        "agent.node": "n",
        "fleet.endpoint": None,
    }


names = st.text("ab-_ .", min_size=1, max_size=6)


@given(
    document=st.dictionaries(
        names, st.dictionaries(names, names | st.none(), max_size=3), max_size=3
    ),
    flow=st.booleans(),
    value=st.text(max_size=8),
)
def test_any_document_is_changed_right_or_refused(
    document: dict[str, dict[str, str | None]], flow: bool, value: str
) -> None:
    text = yaml.safe_dump(document, default_flow_style=flow)
    try:
        changed = set_value(text, ("a", "b"), value)
    except ConfigError:
        return
    after = yaml.safe_load(changed)
    assert after["a"]["b"] == value
