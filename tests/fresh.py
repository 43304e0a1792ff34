"""Code in a process that has torch and e3nn and nothing of this package: forked, as to import these takes seconds."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

#: Forks the processes; it imports torch and e3nn once for each worker, and runs no code of a test.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch", "e3nn.o3"])


def _run(code: str, outputs: tuple[str, str], folder: str, path: list[str], arguments: list[str]) -> None:
    for number, name in enumerate(outputs, 1):
        os.dup2(os.open(name, os.O_WRONLY), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.path[:], sys.argv[:] = path, ["-c", *arguments]
    os.chdir(folder)
    warnings.simplefilter("ignore")
    assert not [name for name in sys.modules if name.partition(".")[0] in ("eqlayers", "eqlayers_kernels")]
    ended: object = 0
    try:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        ended = error.code
        if isinstance(ended, str):
            print(ended, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        ended = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended if isinstance(ended, int) else int(ended is not None))


def fresh(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The code, run as ``python -W ignore -c code arguments`` would, with torch and e3nn imported before.

    Code that must find them absent, or an environment of its own, needs a process from `subprocess`.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = (f"{folder}/out", f"{folder}/err")
        for name in outputs:
            Path(name).touch()
        process = SERVER.Process(target=_run, args=(code, outputs, str(cwd or Path.cwd()), sys.path, list(arguments)))
        process.start()
        process.join()
        out, err = (Path(name).read_text() for name in outputs)
    return subprocess.CompletedProcess(["-c", code, *arguments], process.exitcode or 0, out, err)
