"""The declaration of a setting: ranges in words, values with their unit, and what is refused."""

from dataclasses import dataclass, fields

import pytest

from ingero.core.setting import check_settings, declared, same_setting, setting
from ingero.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    share: float = setting(0.5, above=0.0, below=1.0)
    wait_s: float = setting(2.0, key="wait", duration=True, range=(0.1, 3600.0))
    size: int = setting(1 << 20, size=True, range=(1024, None))
    alpha: float = setting(0.2, above=0.0, range=(None, 1.0))
    gap: float = setting(0.1, range=(0.0, None), below=0.5)
    mode: str = setting("a", choices=("a", "b"))

    def __post_init__(self) -> None:
        check_settings(self)


def test_ranges_in_words() -> None:
    assert [declared(field).allowed() for field in fields(Policy)] == [
        "above 0 and below 1",
        "100ms to 1h",
        "1k or more",
        "above 0, at most 1",
        "0 to below 0.5",
        "",
    ]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"share": 1.0}, "share: 1 is out of range; allowed: above 0 and below 1"),
        ({"wait_s": 0.0}, "wait: 0s is out of range; allowed: 100ms to 1h"),
        ({"size": 1}, "size: 1 is out of range; allowed: 1k or more"),
        ({"gap": float("nan")}, "gap: nan is out of range; allowed: 0 to below 0.5"),
        ({"mode": "c"}, "mode: must be one of a, b, not 'c'"),
    ],
)
def test_what_is_outside_is_refused(wrong: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(**wrong)  # type: ignore[arg-type] # wrong on purpose
    assert str(caught.value) == complaint


def test_a_field_can_be_declared_as_a_policy_declares_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Block:
        wait: float = same_setting(Policy, "wait_s")

    assert Block().wait == 2.0
    assert declared(fields(Block)[0]) == declared(fields(Policy)[1])
