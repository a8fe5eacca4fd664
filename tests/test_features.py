"""Every promised capability of Fleet, push loop, socket, sink and fan-out is cited by a test or a benchmark."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROMISED = [
    *range(1, 14),
    *range(15, 25),
    *range(32, 56),
    60,
    61,
    62,
    63,
    65,
    66,
    104,
    106,
    107,
    131,
    *range(135, 142),
    *range(143, 153),
    154,
    155,
    156,
    158,
]


def test_every_promised_feature_is_cited() -> None:
    texts = [
        file.read_text().replace("_", " ")
        for folder in ("tests", "bench")
        for file in ROOT.glob(f"{folder}/**/*.py")
    ]
    cited = {
        int(number)
        for text in texts
        for number in re.findall(r"(?i)(?<![0-9a-z])f(\d{3})(?!\d)", text)
    }
    assert [f"F{number:03}" for number in PROMISED if number not in cited] == []
