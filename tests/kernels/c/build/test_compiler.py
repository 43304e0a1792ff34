"""The C compiler: what it makes, what is kept, and what is reported when it is missing, fails, or dies."""

import ctypes
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eqlayers.core.backends.registry import as_backend_error
from eqlayers.errors import BackendError
from eqlayers_kernels.c.build import cache, compiler
from eqlayers_kernels.c.build.compiler import EXPORT, CompilerError, load, load_many

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler named cc")
ANSWER = EXPORT + " int answer(void) { return %d; }"
COUNT = itertools.count()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache, and a process that has compiled nothing yet.

    Its name was in no earlier test: the loader gives a library that is open under the same path, and pytest uses paths
    of removed folders again.
    """
    cache_dir = tmp_path / f"cache-{next(COUNT)}"
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(cache_dir))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.setattr(compiler, "_loaded", {})
    compiler._tried.clear()
    yield cache_dir / "kernels"
    compiler._tried.clear()


@pytest.fixture
def fake_cc(tmp_path, monkeypatch):
    """Makes a shell script the compiler: `body`, then the real one. Each call is a line in the returned log."""

    def make(body=""):
        log, script = tmp_path / "calls", tmp_path / "fake cc"
        log.touch()
        script.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n{body}\nexec "{shutil.which("cc")}" "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CC", f"'{script}'")
        return log

    return make


def calls(log):
    """The compilations in a log; asking for the version is none."""
    return [line for line in log.read_text().splitlines() if line != "--version"]


def forget():
    """Forget compilers and libraries, like a new process."""
    compiler._loaded.clear()
    compiler._tried.clear()


@needs_cc
def test_compiled_loaded_and_kept(folder, fake_cc):
    log = fake_cc()
    assert compiler.why_not() is None
    assert compiler.toolchain().refused == ()  # no flag is misspelt
    library = load(ANSWER % 42, "answer")
    assert library.answer() == 42
    assert load(ANSWER % 42, "answer") is library
    assert load(ANSWER % 43, "answer").answer() == 43
    assert len(calls(log)) == 3  # the trial and two kernels
    assert sum(path.name.startswith("answer-") for path in folder.iterdir()) == 2


@needs_cc
def test_a_second_process_starts_without_compiling(fake_cc):
    log = fake_cc()
    load(ANSWER % 1, "answer")
    before = calls(log)
    forget()
    assert load(ANSWER % 1, "answer").answer() == 1
    assert calls(log) == before


@needs_cc
def test_the_key_covers_what_decides_the_result(monkeypatch):
    assert any(line.startswith(("flags", "Features")) for line in compiler._machine().splitlines())
    tools = compiler.toolchain()
    changed = [
        *(compiler._key(texts, "n", tools) for texts in (("a",), ("b",), ("a", ""))),
        compiler._key(("a",), "m", tools),
        compiler._key(("a",), "n", compiler.Toolchain(tools.command, tools.version, ("-O2",))),
        compiler._key(("a",), "n", compiler.Toolchain(tools.command, "13.0", tools.flags)),
        compiler._key(("a",), "n", compiler.Toolchain(("/other/cc",), tools.version, tools.flags)),
    ]
    monkeypatch.setattr(compiler, "_machine", lambda: "another processor")
    changed.append(compiler._key(("a",), "n", tools))
    monkeypatch.setattr(compiler, "FORMAT", compiler.FORMAT + 1)
    changed.append(compiler._key(("a",), "n", tools))
    assert len(set(changed)) == len(changed)


ARITHMETIC = f"""
{EXPORT} void sums(const double *x, int n, double *out) {{
    double sum = 0, zero = 0;
    for (int i = 0; i < n; i++) {{ sum += x[i]; zero += x[n] * x[i]; }}
    out[0] = sum; out[1] = zero; out[2] = x[0] - x[0]; out[3] = x[0] != x[0]; out[4] = x[0] * 0.5;
}}
"""


@needs_cc
@pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf, 5e-324 * 2, 1.5])
def test_nan_inf_and_denormals_are_honest(first):
    values = (ctypes.c_double * 10)(first, *range(1, 9), 0.0)
    out = (ctypes.c_double * 5)()
    load(ARITHMETIC, "arithmetic").sums(values, 9, out)
    expected = [sum(values), sum(0.0 * value for value in values), first - first, float(first != first), first * 0.5]
    assert [*map(repr, out)] == [*map(repr, expected)]
    assert out[4] != 0  # denormals are flushed to zero neither there nor here


@needs_cc
def test_only_marked_functions_are_exported():
    library = load("int inside(void) { return 1; }\n" + EXPORT + " int outside(void) { return inside(); }", "hidden")
    assert library.outside() == 1
    assert not hasattr(library, "inside")


@needs_cc
def test_several_units_are_one_library(fake_cc):
    log = fake_cc()
    units = [f"int part{i}(void) {{ return {10**i}; }}" for i in range(4)]
    calls_of = " + ".join(f"part{i}()" for i in range(4))
    declared = "".join(f"extern int part{i}(void);" for i in range(4))
    library = load_many([*units, f"{declared} {EXPORT} int all(void) {{ return {calls_of}; }}"], "many")
    assert library.all() == 1111
    assert sum("many_" in call and " -c " in call for call in calls(log)) == 5
    with pytest.raises(CompilerError, match=r"undefined symbol: part0"):
        load_many(["int lonely;", f"{declared} {EXPORT} int all(void) {{ return part0(); }}"], "many")


@needs_cc
def test_units_are_compiled_side_by_side(fake_cc, tmp_path, monkeypatch):
    """Each of two compilations waits until the other has begun."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    wait = f"""case "$*" in *"-c -o pair_"*)
        for last; do :; done; touch "{tmp_path}/$last.begun"; n=0
        while [ ! -e "{tmp_path}/pair_0.c.begun" ] || [ ! -e "{tmp_path}/pair_1.c.begun" ]; do
            sleep 0.02; n=$((n+1)); [ $n -gt 500 ] && exit 9
        done;; esac"""
    fake_cc(wait)
    assert load_many([ANSWER % 5, "int unused;"], "pair").answer() == 5


@pytest.mark.parametrize("name", ["", "a-b", "a/b", "../a", "1a", "é"])
def test_bad_arguments(name):
    with pytest.raises(ValueError, match="expected an identifier as the name of a kernel, got"):
        load("", name)
    for sources in ([], "int x;"):
        with pytest.raises(ValueError, match=r"expected a non-empty sequence of C sources, got .*; pass"):
            load_many(sources, "name")


@needs_cc
def test_wrong_source(folder):
    with pytest.raises(CompilerError, match=r"(?s)expected `.*` to succeed, .* status 1; .* printed: .*error:"):
        load("int f(void) { return }", "wrong")
    assert not any(path.name.startswith("wrong") for path in folder.iterdir())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nonexistent-compiler", "CC is 'nonexistent-compiler', and there is no such program; correct CC, or unset it"),
        ("gcc 'unclosed", "expected a command in CC"),
        ("/bin/false", r"`/bin/false --version` to succeed, it failed with status 1; set CC"),
    ],
)
def test_no_compiler(monkeypatch, value, reason):
    monkeypatch.setenv("CC", value)
    assert compiler.why_not().startswith("needs a ")
    assert reason in compiler.why_not()
    with pytest.raises(CompilerError, match="compiling a kernel needs a"):
        load(ANSWER % 1, "answer")


def test_nothing_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "found none of cc, gcc, clang; install gcc" in compiler.why_not()


@needs_cc
def test_the_reason_is_found_once(fake_cc):
    log = fake_cc('[ "$1" = --version ] || { echo broken >&2; exit 3; }')
    (reason,) = {compiler.why_not() for _ in range(3)}
    assert "status 3; set CC to a working gcc or clang. It printed: broken" in reason
    assert len(calls(log)) == 2  # with all flags, with the needed ones


@needs_cc
def test_a_refused_flag_is_left_out_and_named(fake_cc):
    fake_cc('case "$*" in *-march=native*|*-fassociative-math*) echo unknown flag >&2; exit 1;; esac')
    with pytest.warns(RuntimeWarning, match="to accept -march=native -fassociative-math, it does not") as caught:
        assert compiler.why_not() is None
    assert len(caught) == 1
    tools = compiler.toolchain()
    assert tools.refused == ("-march=native", "-fassociative-math")
    assert {*tools.flags, *tools.refused} == {*compiler.NEEDED_FLAGS, *compiler.OPTIONAL_FLAGS}
    assert load(ANSWER % 6, "answer").answer() == 6


@needs_cc
def test_flags_that_cc_names_are_left_to_it():
    tools = compiler._try_compiler("cc -march=x86-64")
    assert {*compiler.OPTIONAL_FLAGS} - {*tools.flags} == {"-march=native"}


DIES = """case "$*" in *"-o victim.so"*) printf '\\177ELF half' > victim.so; %s;; esac"""


@needs_cc
@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("kill -KILL $$", r"killed by signal 9 \(Killed\); is there enough memory"),
        ("exit 4", "failed with status 4"),
        ("exit 0", r"expected a shared object that can be loaded.*too short"),
        ("echo text > victim.so; exit 0", "expected a shared object .*, got 5 bytes of something else"),
        ("rm victim.so; exit 0", r"to write victim\.so, got: .*No such file"),
    ],
)
def test_a_compiler_that_dies_half_way(folder, fake_cc, end, message):
    fake_cc(DIES % end)
    assert compiler.why_not() is None
    with pytest.raises(CompilerError, match=message):
        load(ANSWER % 7, "victim")
    assert not any(path.name.startswith(("victim", ".tmp")) for path in folder.iterdir())
    fake_cc()  # the same command, in order again
    assert load(ANSWER % 7, "victim").answer() == 7


@needs_cc
def test_a_compiler_that_hangs(fake_cc, monkeypatch):
    assert compiler.why_not() is None
    fake_cc("sleep 20")
    with pytest.raises(CompilerError, match=r"to end within 0 s, it did not; set CC"):
        compiler._call((os.environ["CC"].strip("'"),), seconds=0.2)


@needs_cc
@pytest.mark.parametrize("planted", ["half", "damaged", "foreign", "writable"])
def test_what_cannot_be_trusted_is_rebuilt_not_loaded(folder, fake_cc, tmp_path, planted):
    """Among them a working library of the right name but without our checksum: its constructor must not run."""
    log = fake_cc()
    load(ANSWER % 9, "answer")
    (path,) = folder.glob("answer-*")
    genuine = path.read_bytes()
    opens = f'void *fopen(); __attribute__((constructor)) void go(void) {{ fopen("{folder.parent}/loaded", "w"); }}'
    (tmp_path / "foreign.c").write_text(opens)
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", "-o", folder.parent / "foreign.so", tmp_path / "foreign.c"], check=True
    )
    foreign = (folder.parent / "foreign.so").read_bytes()
    path.unlink()  # what is loaded stays mapped
    damaged = genuine[:1000] + bytes([genuine[1000] ^ 255]) + genuine[1001:]
    path.write_bytes({"half": genuine[:7000], "damaged": damaged, "foreign": foreign}.get(planted, genuine))
    path.chmod(0o622 if planted == "writable" else 0o600)
    forget()
    assert load(ANSWER % 9, "answer").answer() == 9
    assert not (folder.parent / "loaded").exists()
    assert sum("answer" in call for call in calls(log)) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    ctypes.CDLL(str(folder.parent / "foreign.so"))
    assert (folder.parent / "loaded").exists()  # the trap works


@needs_cc
def test_an_unusable_cache_still_compiles(folder):
    folder.parent.write_text("occupied")
    with pytest.warns(RuntimeWarning, match="expected to keep compiled kernels in") as caught:
        assert load(ANSWER % 10, "answer").answer() == 10
    assert load(ANSWER % 11, "answer").answer() == 11
    assert len(caught) == 1


@needs_cc
def test_threads_compile_each_kernel_once(fake_cc):
    log = fake_cc()
    found, begin = [], threading.Barrier(8)

    def work(i):
        begin.wait()
        found.append((i % 2, load(ANSWER % (i % 2), "answer")))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(calls(log)) == 3
    assert len(set(found)) == 2
    assert all(library.answer() == i for i, library in found)


CHILD = f"""
import sys, time
from eqlayers_kernels.c.build.compiler import load
time.sleep(max(0, float(sys.argv[1]) - time.time()))
assert load({ANSWER % 12!r}, "answer").answer() == 12
assert not {{"torch", "eqlayers"}} & set(sys.modules)
"""


@needs_cc
def test_two_processes_compile_the_same_at_once(folder, fake_cc):
    log = fake_cc('case "$*" in *answer*) sleep 0.3;; esac')  # both are at it before one is done
    environment = {**os.environ, "PYTHONPATH": str(Path(cache.__file__).parents[2])}
    command = [sys.executable, "-c", CHILD, str(time.time() + 0.5)]
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in both] == [("", 0)] * 2
    assert sum("answer" in call for call in calls(log)) == 2  # the test met its case
    assert len([*folder.glob("answer-*")]) == 1
    assert not [*folder.glob(".tmp*")]
    assert load(ANSWER % 12, "answer").answer() == 12
    assert sum("answer" in call for call in calls(log)) == 2


@needs_cc
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_compiles(fake_cc, tmp_path):
    """The child neither waits for a thread that it does not have, nor loads half of its work."""
    fake_cc(f'case "$*" in *answer*) touch "{tmp_path}/begun"; sleep 0.5;; esac')
    assert compiler.why_not() is None
    other = threading.Thread(target=load, args=(ANSWER % 13, "answer"))
    other.start()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(20)  # a deadlock becomes a failure
            status = load(ANSWER % 13, "answer").answer() - 13 + load(ANSWER % 0, "other").answer()
        finally:
            os._exit(status)
    assert other.is_alive()  # the fork was in the middle
    other.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert load(ANSWER % 13, "answer").answer() == 13


def test_a_missing_compiler_is_an_error_that_no_handler_of_files_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written is left out, which hides an OSError; a missing compiler must not be hidden."""
    monkeypatch.setenv("CC", "nonexistent-compiler")
    monkeypatch.setattr(compiler, "_loaded", {})
    compiler._tried.clear()
    try:
        message = r"there is no such program; .*\. Or pass backend='torch'\."
        with pytest.raises(BackendError, match=message) as caught, as_backend_error():
            compiler.load("", "kernel")
    finally:
        compiler._tried.clear()
    cause = caught.value.__cause__
    assert type(cause) is CompilerError
    assert isinstance(cause, RuntimeError)
    assert not isinstance(cause, (OSError, ValueError))
    with pytest.raises(ValueError, match="expected an identifier"), as_backend_error():
        compiler.load("", "not a name")
