"""Workflows and templates of the forge, and the pages of contributors: every command that they name is there."""

import re
from pathlib import Path

import pytest
import yaml

from eqlayers.cli.main import parser

ROOT = Path(__file__).resolve().parents[2]
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
TEXTS = [*WORKFLOWS, *FORMS, FORGE / "pull_request_template.md", ROOT / "CONTRIBUTING.md", FORGE / "SECURITY.md"]
#: Commands of the checkout: targets of the Makefile and sessions of the noxfile.
TARGETS = {"help", *re.findall(r"^does\.([\w-]+) +:=", (ROOT / "Makefile").read_text(), re.MULTILINE)}
SESSIONS = set(re.findall(r"^@nox\.session.*\ndef (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
HERE = {*(f"make {target}" for target in TARGETS), *(f"nox -s {session}" for session in SESSIONS)}
#: What commands of a text make.
MADE = {"docs/_build", "docs/_build/html"}
#: Commands of this package, as its own help lists them.
COMMANDS = set(re.findall(r"^    (\w+)  ", parser().format_help(), re.MULTILINE))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def named(text: str) -> set[str]:
    """Commands of the checkout that a text or a script names; one `nox -s` may name several sessions."""
    text = text.replace("$make", "`make").replace("$nox", "nox -s")
    made = re.findall(r"(?:^|`)(make [a-z][\w-]*)", text, re.MULTILINE)
    run = re.findall(r"\bnox -s (\w[\w ]*)", text)
    return {*made, *(f"nox -s {session}" for sessions in run for session in sessions.split())}


def of_workflow(path: Path) -> set[str]:
    """The commands that the matrices of a workflow hold."""
    texts: list[str] = []
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        matrix = job["strategy"]["matrix"]
        texts += [f"`{command}`" for command in matrix.get("command", [])]
        texts += [f"nox -s {session}" for session in matrix.get("session", [])]
    return set().union(*map(named, texts))


def test_there_are_files_to_look_at() -> None:
    assert {path.name for path in WORKFLOWS} == {"checks.yml", "weekly.yml"}
    assert {path.name for path in FORMS} == {"bug.yml", "idea.yml"}
    assert sorted(TARGETS) == ["clean", "docs", "help", "lint", "test", "test-all", "train"]
    assert {"wheel", "long", "bench", "mutations"} <= SESSIONS
    assert {"fit", "info", "cache"} <= COMMANDS


@pytest.mark.parametrize("path", TEXTS, ids=relative)
def test_commands_that_a_text_names_are_there(path: Path) -> None:
    text = path.read_text()
    gone = (named(text) | (of_workflow(path) if path in WORKFLOWS else set())) - HERE
    assert not gone, f"{relative(path)} names {sorted(gone)}, which neither Makefile nor noxfile.py has"
    ours = set(re.findall(r"`eqlayers (\w+)", text))
    assert not ours - COMMANDS, f"{relative(path)} names `eqlayers` {sorted(ours - COMMANDS)}, which are no commands"


def test_workflows_make_what_a_change_must_pass() -> None:
    """A change is checked by the first of the steps of .ci/run; the rest follows within a week."""
    steps = named((ROOT / ".ci" / "run").read_text())
    assert len(steps) == 9, f".ci/run has the steps {sorted(steps)}"
    assert not steps - HERE, f".ci/run has the steps {sorted(steps - HERE)}, which neither Makefile nor noxfile.py has"
    checks, weekly = (of_workflow(FORGE / "workflows" / f"{name}.yml") for name in ("checks", "weekly"))
    missing = sorted(steps - checks - weekly)
    assert not missing, f"no workflow runs {missing}, which .ci/run has: add them to the matrix of weekly.yml"
    first = sorted({"make lint", "nox -s wheel", "make test", "make docs"} - checks)
    assert not first, f"checks.yml must run {first} for every change: add them to its matrix"
    assert not checks & weekly, f"both workflows run {sorted(checks & weekly)}: leave them in one"


@pytest.mark.parametrize("path", WORKFLOWS, ids=relative)
def test_workflows_are_bounded_and_read_only(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert content["permissions"] == {"contents": "read"}, f"{relative(path)} must have no more than `contents: read`"
    for name, job in content["jobs"].items():
        assert job["timeout-minutes"] <= 90, f"the job {name} of {relative(path)} must end after 90 minutes"
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        loose = [action for action in used if not re.fullmatch(r"actions/[\w-]+@v\d+", action)]
        assert not loose, f"{relative(path)} uses {loose}: take actions of the forge itself, with a version"
        versions = [step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {})]
        assert versions, f"the job {name} of {relative(path)} sets up no Python"
        pins = (ROOT / ".ci" / "constraints" / "tested.txt").read_text()
        others = [version for version in versions if f"on Python {version}" not in pins]
        assert not others, f"the job {name} of {relative(path)} has Python {others}, for which there are no constraints"


@pytest.mark.parametrize("path", FORMS, ids=relative)
def test_forms_have_what_the_forge_asks_for(path: Path) -> None:
    """It ignores a form with a fault, and says so on its page only."""
    form = yaml.safe_load(path.read_text())
    lacks = [key for key in ("name", "description", "body") if not form.get(key)]
    assert not lacks, f"no {lacks} in {relative(path)}"
    ids = [part.get("id") for part in form["body"]]
    assert len(set(ids)) == len(ids), f"fields of {relative(path)} must have ids of their own, got {ids}"
    for part in form["body"]:
        kinds = ("textarea", "input", "dropdown", "checkboxes")
        assert part["type"] in kinds, f"{relative(path)} must have fields of the types {kinds}, got {part['type']!r}"
        assert part["attributes"].get("label"), f"no `label:` of {part['id']} in {relative(path)}"
    required = [part for part in form["body"] if part.get("validations", {}).get("required")]
    assert required, f"{relative(path)} asks for nothing: one field must be required"


@pytest.mark.parametrize("path", TEXTS, ids=relative)
def test_sections_and_files_that_a_text_names_are_there(path: Path) -> None:
    text = path.read_text()
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    for quoted in re.findall(r'"([^"\n]+)"[^.\n]{0,20} in CONTRIBUTING\.md', text):
        assert quoted.lower() in contributing.lower(), f"{relative(path)} names {quoted!r}, not in CONTRIBUTING.md"
    named = set(re.findall(r"\b(?:tests|docs)/[\w/]+\b(?:\.\w+)?", text)) - MADE
    gone = sorted(name for name in named if not any(ROOT.glob(f"{name}*")))
    assert not gone, f"{relative(path)} names {gone}, which are not there"
