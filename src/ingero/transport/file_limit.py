"""The limit on open files, raised when a service starts, because every connection is a file."""

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

ENOUGH_FILES: Final = 65_536
_MOST_FILES: Final = 1 << 20  # the kernel's own limit unless it was changed


def raise_file_limit() -> int:
    """Raise the soft limit to the hard one and return it; log a warning if it is still low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            log.warning("file_limit_not_raised", extra={"limit": soft, "why": str(error)})
    limit = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    if limit < ENOUGH_FILES:
        next_step = "raise the hard limit: LimitNOFILE= of systemd, or ulimit -Hn"
        log.warning(
            "few_open_files", extra={"limit": limit, "enough": ENOUGH_FILES, "next": next_step}
        )
    return limit
