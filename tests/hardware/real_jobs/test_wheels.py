"""What is carried to a machine without network is all that Fleet and the agent import there."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions

from tests.hardware.prepare_wheels import WHEELS

THERE = {"numpy", "ingero", "setuptools", "pip"}  # on that machine, or in the tree
CODE = (
    "import sys, ingero.agent.push.app, ingero.fleet.app, ingero.cli.commands.services.fleet;"
    "print(*{name.split('.')[0] for name in sys.modules})"
)


def test_every_distribution_that_is_imported_is_carried() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    owners = packages_distributions()
    needed = {
        re.sub(r"[-_.]+", "-", owner).lower() for name in loaded for owner in owners.get(name, ())
    }
    assert needed - THERE - set(WHEELS) == {"uvloop"} & needed  # used where it is installed
