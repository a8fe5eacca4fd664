"""`python -m tests.fuzz TARGET SECONDS`: run one target, guided by coverage.

Needs atheris, which `make fuzz` installs from requirements.lock of this folder. A target is a
module in this folder with a function `fuzz(data: bytes)` that raises for a finding; its corpus is
the folder `corpus/TARGET`. What is found is kept in `.cache/fuzz`: it belongs into the corpus,
together with its fix.
"""

import importlib
import sys
import tempfile
from pathlib import Path

import atheris

FOLDER = Path(__file__).parent
FOUND = FOLDER.parents[1] / ".cache" / "fuzz"


def main() -> None:
    target, seconds = sys.argv[1], sys.argv[2]
    with atheris.instrument_imports(include=["ingero"]):
        module = importlib.import_module(f"tests.fuzz.{target}")
    corpus = FOLDER / "corpus" / target
    FOUND.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as new:
        options = {
            "max_total_time": seconds, "max_len": "4096", "timeout": "20", "verbosity": "0",
            "print_final_stats": "1", "artifact_prefix": f"{FOUND}/{target}-",
        }  # fmt: skip
        arguments = [f"-{name}={value}" for name, value in options.items()]
        atheris.Setup([sys.argv[0], *arguments, new, str(corpus)], module.fuzz)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
