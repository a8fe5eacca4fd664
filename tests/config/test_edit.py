"""Changing ingero.yaml in place: everything but the new entry stays as it was."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.config.edit import add_trusted
from ingero.errors import ConfigError

PRINT = ":".join(["AB"] * 32)
NODE = "gpu-node-01:8080"
FILES = {
    "empty": "",
    "comment": "# nothing yet",
    "other": "agent:\n  node: a  # ours\n",
    "null": "fleet:\nagent:\n  node: a\n",
    "tilde": "fleet: ~  # later\n",
    "quoted key": '"fleet":\n    nodes: [a:1, b:2]\n',
    "deep": "fleet:\n        nodes:\n        - a:1\n\n# end\n",
    "trusted": 'fleet:\n  nodes: [a:1]\n  trusted:\n    # why\n    "a:1": "00"\n',
    "known": f'fleet:\n  trusted:\n    {NODE}: "00"  # old\n    b: "11"\n',
    "value below": f'fleet:\n  trusted:\n    {NODE}:\n      "00"\n',
    "empty trusted": "fleet:\n  trusted:\n  nodes: [a:1]\n",
    "dashes": "---\nfleet:\n  nodes: [a:1]\n",
    "CRLF": "fleet:\r\n  nodes: [a:1]\r\n",
}


@pytest.mark.parametrize("name", FILES)
def test_everything_else_stays(name: str) -> None:
    before = FILES[name]
    after = add_trusted(before, NODE, PRINT)
    loaded, old = yaml.safe_load(after), yaml.safe_load(before) or {}
    assert loaded["fleet"]["trusted"][NODE] == PRINT
    assert {key: value for key, value in loaded.items() if key != "fleet"} == {
        key: value for key, value in old.items() if key != "fleet"
    }
    assert [
        line for line in before.splitlines() if "#" in line and line not in after.splitlines()
    ] == [line for line in before.splitlines() if "# later" in line or "# old" in line], (
        "comments stay"
    )
    assert add_trusted(after, NODE, PRINT) == after


@pytest.mark.parametrize(
    "text", ["fleet: {nodes: [a:1]}\n", "{}\n", "a: 1\n...\n", "x: &x {}\nfleet:\n  trusted: *x\n"]
)
def test_what_needs_a_person_is_said_and_nothing_is_changed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"under fleet\.trusted, add"):
        add_trusted(text, NODE, PRINT)


_scalar = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8))
_tree = st.recursive(
    _scalar,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(["agent", "store", "fleet"]),
        st.dictionaries(st.text(min_size=1, max_size=6), _tree, max_size=3),
    ),
    st.integers(2, 6),
    st.text(min_size=1, max_size=12),
)
@settings(max_examples=80, deadline=None)
def test_any_file_is_extended_or_left_alone(
    content: dict[str, object], indent: int, node: str
) -> None:
    text = yaml.safe_dump(content, indent=indent, default_flow_style=False)
    try:
        after = yaml.safe_load(add_trusted(text, node, PRINT))
    except ConfigError:
        return
    trusted = after["fleet"].pop("trusted")
    assert trusted[node] == PRINT
    expected = {key: value for key, value in content.items() if key != "fleet"}
    fleet = {key: value for key, value in (content.get("fleet") or {}).items() if key != "trusted"}  # type: ignore[attr-defined]
    assert after == expected | {"fleet": fleet}
