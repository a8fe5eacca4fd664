"""The limit on open files, in a process of its own so that the tests keep theirs."""

import json
import subprocess
import sys

SCRIPT = """
import json, logging, resource, sys
soft, hard = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
logging.basicConfig(format="%(message)s", stream=sys.stderr)
from ingero.transport.file_limit import raise_file_limit
limit = raise_file_limit()
print(json.dumps([limit, resource.getrlimit(resource.RLIMIT_NOFILE)[0]]))
"""


def raised(soft: int, hard: int) -> tuple[list[int], str]:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([soft, hard])],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(ran.stdout), ran.stderr


def test_the_soft_limit_becomes_the_hard_one_and_a_low_one_is_reported() -> None:
    limits, said = raised(256, 1024)
    assert limits == [1024, 1024]
    assert said == "few_open_files\n"
