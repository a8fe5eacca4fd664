"""Renews the certificate of this node, run by `ingero agent`: `python -m ingero.cli.renew FOLDER`.

A process of its own, because what it imports would stay in the memory of the agent.
"""

import sys
from pathlib import Path

from ingero.agent.service.membership import MemberFiles, renew_if_due
from ingero.agent.service.renewal import FAILED, NOT_DUE, RENEWED
from ingero.errors import IngeroError


def main() -> int:
    """Renew if it is time to; the exit status says what happened."""
    try:
        return RENEWED if renew_if_due(MemberFiles(Path(sys.argv[1]))) else NOT_DUE
    except (IngeroError, OSError) as error:
        print(f"ingero agent: the certificate was not renewed: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
