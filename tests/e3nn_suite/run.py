"""Run e3nn's own published tests, once with e3nn's layers and once with ours in their place, and write a table.

``python tests/e3nn_suite/run.py [--sdist FILE] [--output PAGE] [arguments of pytest]``. The tests are those of the
source distribution of the installed e3nn; without a file it is fetched with pip, once. Exit status 1 if a test that
passes with e3nn's layers does not pass with ours.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from plugin import CLASSES

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eqlayers"
LAYERS = ("e3nn", "eqlayers")

#: Tests that are left out with our layers: pytest node id (without its parameters) and the reason.
DESELECTED: dict[str, str] = {}


class Outcome(NamedTuple):
    """The outcome of one test: 'passed', 'failed' or 'skipped', and the first line of the reason."""

    status: str
    reason: str


def find_sdist(release: str, folder: Path) -> Path:
    """The source distribution of e3nn, from the cache or from the package index.

    Raises:
        SystemExit: It cannot be fetched.
    """
    found = folder / f"e3nn-{release}.tar.gz"
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-deps", "--no-binary", ":all:", "--dest", str(folder), f"e3nn=={release}"]
        done = subprocess.run([sys.executable, "-m", "pip", "download", *options])
        if done.returncode or not found.exists():
            raise SystemExit(
                f"the source distribution of e3nn {release} must be at {found}, and pip could not fetch it. "
                f"Pass --sdist with a path to e3nn-{release}.tar.gz."
            )
    return found


def unpack_tests(sdist: Path, folder: Path) -> None:
    """Only the tests: e3nn itself is the installed one.

    Raises:
        SystemExit: The archive holds no tests.
    """
    with tarfile.open(sdist) as archive:
        members = [m for m in archive.getmembers() if m.isfile() and m.name.split("/")[1:2] == ["tests"]]
        if not members:
            raise SystemExit(f"{sdist} must hold a folder tests, got none. Take the source distribution, not a wheel.")
        for member in members:
            member.name = member.name.partition("/")[2]
            archive.extract(member, folder, filter="data")
    (folder / "pytest.ini").write_text("[pytest]\npython_files = test_*.py *_test.py\n")


def run(layers: str, folder: Path, arguments: Sequence[str]) -> dict[str, Outcome]:
    """Outcomes by test, of one run."""
    report = folder / f"{layers}.xml"
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    left_out = [f"--deselect={name}" for name in DESELECTED] if layers == "eqlayers" else []
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "--layers", layers, "-p", "no:cacheprovider"]
    command += ["--import-mode=importlib", f"--junitxml={report}", *left_out, *arguments]
    if not any((folder / argument.partition("::")[0]).exists() for argument in arguments):
        command.append("tests")
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths})
    if not report.exists():
        raise SystemExit("pytest must write a report, got none; its output above says why. Correct its arguments.")
    outcomes = read(report)
    if not outcomes:
        raise SystemExit("pytest must run at least one test, got none. Correct the arguments, or PYTEST_ADDOPTS.")
    return outcomes


def read(report: Path) -> dict[str, Outcome]:
    """Outcomes of a report in JUnit's format, by ``module::test[parameters]``."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}".removeprefix("tests.").removeprefix("::")
        status, reason = "passed", ""
        for kind in ("skipped", "failure", "error"):
            found = case.find(kind)
            if found is not None:
                status = "skipped" if kind == "skipped" else "failed"
                reason = (
                    (found.get("message") or "").strip() or found.get("type") or ""
                )  # an expected failure has a type
                reason = reason.splitlines()[0][:160] if reason else ""
        outcomes[name] = Outcome(status, reason)
    return outcomes


def page(outcomes: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The table, and below it every test that did not pass, with its reason."""
    files: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: {layers: Counter() for layers in LAYERS})
    for layers in LAYERS:
        for name, outcome in outcomes[layers].items():
            files[name.partition("::")[0]][layers][outcome.status] += 1
    kinds = ("passed", "failed", "skipped")
    lines = [
        "# e3nn's own tests",
        "",
        f"The complete published tests of e3nn {version('e3nn')} (its source distribution), run twice: with e3nn's",
        "layers, and with ours in their place in every module of e3nn:",
        *(f"- of `e3nn.{package}`: {', '.join(f'`{name}`' for name in names)};" for package, names in CLASSES.items()),
        "",
        "`nox -s e3nn_suite` runs them and writes this page.",
        "",
        f"torch {version('torch')}, Python {platform.python_version()}.",
        "",
        "| file | " + " | ".join(f"{layers}: {kind}" for layers in LAYERS for kind in kinds) + " |",
        "|---|" + "--:|" * 6,
    ]
    total = {layers: Counter[str]() for layers in LAYERS}
    for file in sorted(files):
        counts = [files[file][layers][kind] for layers in LAYERS for kind in kinds]
        lines.append(f"| `{file.replace('.', '/')}` | " + " | ".join(map(str, counts)) + " |")
        for layers in LAYERS:
            total[layers].update(files[file][layers])
    sums = [f"**{total[layers][kind]}**" for layers in LAYERS for kind in kinds]
    lines += ["| **all** | " + " | ".join(sums) + " |", ""]
    lines += [f"Deselected with our layers: {len(DESELECTED)}.", ""]
    lines += [f"- `{name}`: {reason}" for name, reason in DESELECTED.items()]
    lines += ["", *_reasons(outcomes)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _reasons(outcomes: Mapping[str, Mapping[str, Outcome]]) -> list[str]:
    """Failures and skips, with equal ones of one test counted together."""
    lines = []
    for status, heading in (("failed", "Failures"), ("skipped", "Skips")):
        lines += [f"## {heading}", ""]
        found = {
            layers: Counter(
                (name.partition("[")[0].replace(".", "/"), outcome.reason)
                for name, outcome in outcomes[layers].items()
                if outcome.status == status
            )
            for layers in LAYERS
        }
        rows = sorted(set(found["e3nn"]) | set(found["eqlayers"]))
        if not rows:
            lines += ["None.", ""]
            continue
        lines += ["| test | reason | e3nn | eqlayers |", "|---|---|--:|--:|"]
        lines += [
            f"| `{test}` | {reason.replace('|', chr(92) + '|')} | {found['e3nn'][test, reason]} | "
            f"{found['eqlayers'][test, reason]} |"
            for test, reason in rows
        ]
        lines.append("")
    return lines


def worse(outcomes: Mapping[str, Mapping[str, Outcome]]) -> list[str]:
    """Tests that pass with e3nn's layers and neither pass with ours nor are deselected."""
    left_out = {name.replace(".py", "").replace("/", ".").removeprefix("tests.") for name in DESELECTED}
    return [
        name
        for name, outcome in outcomes["e3nn"].items()
        if outcome.status == "passed"
        and name.partition("[")[0] not in left_out
        and outcomes["eqlayers"].get(name, Outcome("not run", "")).status != "passed"
    ]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sdist", type=Path, help="source distribution of the installed e3nn; fetched if left out")
    parser.add_argument("--output", type=Path, help="Markdown page to write; printed if left out")
    options, arguments = parser.parse_known_args()
    sdist = (options.sdist or find_sdist(version("e3nn"), CACHE)).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack_tests(sdist, folder)
        outcomes = {layers: run(layers, folder, arguments) for layers in LAYERS}
    text = page(outcomes)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    failing = worse(outcomes)
    print("\n".join(f"passes with e3nn's layers only: {name}" for name in failing))
    sys.exit(1 if failing else 0)


if __name__ == "__main__":
    main()
