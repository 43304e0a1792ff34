"""The recipe docs/development/add_a_layer.md, followed in a copy of the package: green, and every step is needed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs" / "development" / "add_a_layer.md").read_text()
#: A file, the line below which the text goes (a new file without), and the text.
BLOCKS = re.findall(r"^```py\n# (\S+?)(?:, below `([^`\n]+)`)?\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\.venv/bin/(.+)$", SECTION.replace("\\\n", ""), re.MULTILINE)
#: What is left out -> the message, as the table of the recipe has it.
MESSAGES = dict(re.findall(r"^\| (the .+?) \| `+ ?(.+?) ?`+ \|$", SECTION, re.MULTILINE))
FOLDERS = (".ci", ".github", "configs", "docs", "eqlayers", "examples", "kernels", "tests")
#: The same, the text that is left out, and a test that must say so.
LEFT_OUT = {
    "the heading `Example:`": (r"^    Example:\n", "tests/repository/test_public_names.py -k nn"),
    "the name in `__all__`": (r'^    "NormLimit",\n', "tests/catalogue/test_every_layer_has_a_row.py"),
    "the row of the catalogue": (r"^    norm\(.+\n", "tests/catalogue/test_every_layer_has_a_row.py"),
    "the check of `limit`": (r'check_number\("limit", |, above=0\)', "tests/test_bad_calls.py -k NormLimit"),
    "the page": ("", "tests/catalogue/test_layers.py -k page"),
}


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of the recipe, in the copy, by the programs of this environment."""
    program, *arguments = shlex.split(command)
    start = [sys.executable, "-B"] if program == "python" else [sys.executable, "-B", "-m", program]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**kept, "PYTHONPATH": os.pathsep.join([str(folder), str(folder / "kernels")])}
    return subprocess.run([*start, *arguments], cwd=folder, env=env, capture_output=True, text=True)


def followed(folder: Path, without: str = "") -> Path:
    """A copy of the package with the blocks of the recipe in their places, but for the text of a pattern."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    if (known := ROOT / ".mypy_cache").is_dir():  # of `make lint`, so that mypy reads what is new
        shutil.copytree(known, folder / known.name)
    for path in (path for path in ROOT.iterdir() if path.is_file()):
        shutil.copy(path, folder / path.name)
    for name, line, text in BLOCKS:
        path, text = folder / name, re.sub(without, "", text, flags=re.MULTILINE) if without else text
        if not line:
            assert not path.exists(), f"{name} is there: the recipe needs another example"
            path.write_text(text)
            continue
        before = path.read_text()
        lines = re.findall(rf"^{re.escape(line)}.*\n", before, re.MULTILINE)  # a long line is named by its beginning
        assert len(lines) == 1, f"{name} must have one line that begins with {line!r}: change it in the recipe"
        path.write_text(before.replace(lines[0], f"{lines[0]}{text}"))
    return folder


def test_the_recipe_has_its_steps() -> None:
    """Guards the tests below against finding nothing; its lines fit a narrow page."""
    assert len(BLOCKS) == SECTION.count("```py\n") == 5
    assert len(COMMANDS) == 7
    assert list(MESSAGES) == list(LEFT_OUT), "the last table of the recipe must have the rows that are tested below"
    long = [line for _, _, text in BLOCKS for line in text.splitlines() if len(line) > 88]
    assert not long, f"lines of more than 88 columns in the recipe: {long}"
    named = re.findall(r"^\| \d \| `(.+?)` \|", SECTION, re.MULTILINE)
    made = {name for name, *_ in BLOCKS}
    assert made <= set(named), f"the table of the recipe lacks {sorted(made - set(named))}"
    gone = [name for name in named if name not in made and not (ROOT / name).exists()]
    assert not gone, f"the table of the recipe names {gone}, which are not there"


@pytest.mark.long
def test_the_commands_of_the_recipe_are_green(tmp_path: Path) -> None:
    folder = followed(tmp_path)
    for command in COMMANDS:
        done = run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert "| `NormLimit` |" in (folder / "docs/reference/catalogue.md").read_text()
    assert run("ruff format --check .", folder).returncode == 0
    for name, line, text in BLOCKS:
        assert line or (folder / name).read_text() == text, f"`ruff format` changes {name}: show it as ruff leaves it"


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("what", LEFT_OUT)
def test_a_step_that_is_left_out_is_missed(what: str, tmp_path: Path) -> None:
    """With the message that the recipe shows."""
    pattern, tests = LEFT_OUT[what]
    assert not pattern or any(re.search(pattern, text, re.MULTILINE) for *_, text in BLOCKS)
    done = run(f"pytest -q -p no:cacheprovider {tests}", followed(tmp_path, pattern))
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert MESSAGES[what] in done.stdout
