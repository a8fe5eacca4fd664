"""A job of the user, started as a shell would: signals and exit status are its own."""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

PASSED_ON: Final = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
# SIGCHLD may be taken by another thread of this process, so the child is also checked this often.
CHILD_CHECK_S: Final = 1.0
IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)  # a program must not inherit that


def become(command: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the program; raises OSError when it cannot be started."""
    sys.stdout.flush()
    before = {number: signal.signal(number, signal.SIG_DFL) for number in IGNORED_BY_PYTHON}
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - the caller's own command line
    finally:  # it cannot be started: this process goes on, and a closed pipe must not end it
        for number, handler in before.items():
            signal.signal(number, handler)


def run_job(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Run the program and return its exit status as a shell does; raises OSError.

    Signals that other processes send to this one are passed on. Those of the terminal reach the
    program without us, since it is in the same process group.
    """
    awaited = PASSED_ON | {signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        child = os.posix_spawnp(
            command[0], command, environment, setsigmask=mask, setsigdef=IGNORED_BY_PYTHON
        )
        ended = 0
        while not ended:
            info = signal.sigtimedwait(awaited, CHILD_CHECK_S)
            sent_by_process = info is not None and info.si_code <= 0
            if info and sent_by_process and info.si_signo != signal.SIGCHLD:
                os.kill(child, info.si_signo)
            ended, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
