"""The loader of configuration files: values, and errors that a reader can act on."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingero.config.loader import (
    load_file,
    load_text,
    to_mapping,
)
from ingero.core.setting import setting
from ingero.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    k: float = setting(2.0, range=(1.0, 4.0))
    names: tuple[str, ...] = ()
    extra: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    push_interval_s: float = setting(10.0, key="push_interval", duration=True, range=(1.0, None))
    inner: Inner = Inner()
    mode: str = setting("a", choices=("a", "b"))
    limit_bytes: int = setting(1, key="limit", size=True)
    enabled: bool = True
    where: Path | None = None


def test_values_of_every_kind() -> None:
    text = "push_interval: 1m30s\ninner: {k: 3, names: [x, y], extra: {q: 4}}\nmode: b\n"
    text += "limit: 10g\nenabled: false\nwhere: /a\n"
    assert load_text(Outer, text, "f") == Outer(
        push_interval_s=90.0,
        inner=Inner(k=3.0, names=("x", "y"), extra={"q": 4}),
        mode="b",
        limit_bytes=10 << 30,
        enabled=False,
        where=Path("/a"),
    )


def test_nothing_means_defaults() -> None:
    assert load_text(Outer, "", "f") == Outer() == load_text(Outer, "inner:\n", "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inner:\n  kk: 3", "f:2: inner.kk: unknown key; did you mean k?"),
        (
            "zzz: 3",
            "f:1: zzz: unknown key; allowed: enabled, inner, limit, mode, push_interval, where",
        ),
        ("inner:\n  k: 9", "f:2: inner.k: 9 is out of range; allowed: 1 to 4"),
        ("push_interval: 0.5", "f:1: push_interval: 500ms is out of range; allowed: 1s or more"),
        (
            "push_interval: soon",
            "f:1: push_interval: 'soon' is not a duration such as 500ms, 10s or 1h30m",
        ),
        ("mode: c", "f:1: mode: must be one of a, b, not 'c'"),
        ("inner: 3", "f:1: inner: must be a mapping of keys to values"),
        ("inner: {k: true}", "f:1: inner.k: must be a number, not 'true'"),
        ("inner: {k: 1_5}", "f:1: inner.k: must be a number, not '1_5'"),
        ("enabled: yes", "f:1: enabled: must be true or false, not 'yes'"),
        ("mode: a\nmode: b", "f:2: mode: given twice"),
        ("a: [\n", "f:2: not valid YAML: did not find expected node content"),
        ("inner: {names: x}", "f:1: inner.names: must be a list"),
        ('where: "\\0abstract"', r"f:1: where: '\x00abstract' is not a path"),
    ],
)
def test_errors_name_line_key_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(Outer, text, "f")
    assert str(caught.value) == message


def test_a_missing_file_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.yaml: No such file"):
        load_file(Outer, tmp_path / "nowhere.yaml")


def test_effective_configuration_reads_back() -> None:
    config = Outer(push_interval_s=5.0, inner=Inner(names=("x",)))
    import yaml

    assert load_text(Outer, yaml.safe_dump(to_mapping(config)), "f") == config


@pytest.mark.parametrize("opened", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_an_error_and_no_crash(opened: str) -> None:
    for times in (101, 100_000):
        with pytest.raises(ConfigError, match=r"^x\.yaml: nested too deeply$"):
            load_text(Outer, opened * times, "x.yaml")
