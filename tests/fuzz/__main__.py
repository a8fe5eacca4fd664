"""`python -m tests.fuzz TARGET SECONDS`: run one target, guided by coverage.

Needs atheris, the extra `fuzz`. A target is a module in this folder with a function
`fuzz(data: bytes)` that raises for a finding; its corpus is the folder `corpus/TARGET`.
"""

import importlib
import sys
import tempfile
from pathlib import Path

import atheris

FOLDER = Path(__file__).parent


def main() -> None:
    target, seconds = sys.argv[1], sys.argv[2]
    with atheris.instrument_imports(include=["ingero"]):
        module = importlib.import_module(f"tests.fuzz.{target}")
    corpus = FOLDER / "corpus" / target
    with tempfile.TemporaryDirectory() as found:
        arguments = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20"]
        atheris.Setup([sys.argv[0], *arguments, found, str(corpus)], module.fuzz)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
