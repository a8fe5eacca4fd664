"""Loading prepares for many processes."""

import subprocess
import sys

RAISE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 512))
from ingero.agent.ebpf.loaded import allow_descriptors
allow_descriptors()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_descriptors_are_allowed_up_to_what_we_may_have() -> None:
    """Each process needs several links: the default limit of 1024 is used up by a hundred."""
    done = subprocess.run([sys.executable, "-c", RAISE], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "(512, 512)"
