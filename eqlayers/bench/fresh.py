"""One measurement in a process of its own: a module of this package that is run as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import BackendError


def run_fresh(module: str, task: dict[str, Any], environment: Mapping[str, str], must: str, fix: str) -> Any:
    """The output of a module in a new process, read as JSON.

    Args:
        module: Run with ``task``, as JSON, for its only argument; the last line that it prints counts.
        task: Any value that can be written as JSON.
        environment: Variables in addition to this process's.
        must, fix: First and last words of the error: what the process must do, and what helps.

    Raises:
        BackendError: The process ended with an error.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(task)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise BackendError(f"{must}, got {last!r}. {fix}")
    return json.loads(done.stdout.strip().splitlines()[-1])
