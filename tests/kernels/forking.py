"""Checks in a forked child."""

import os
import signal
from collections.abc import Callable


def in_child(check: Callable[[], object]) -> int:
    """Run ``check`` in a forked child, which must end by itself; the exit code of the child, 0 without an error."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(20)  # a deadlock becomes a failure
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
