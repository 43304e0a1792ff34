"""Pages, configurations, docstrings, comments and messages are free of phrases that are hard to read.

"That of", "whoever" or "what is given" make the reader look for the thing that is meant. Write the subject first, one
fact a sentence, and repeat the noun. In ``tests``, and for local names that say nothing of what they hold, there are
numbers that may fall and not rise: `pytest -s -k sources tests/repository/test_plain_english.py` prints them. Not read,
so far: the pages that `eqlayers bench report` writes. Not to be read: C and Triton code, which are part of the keys of
compiled kernels.
"""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.each import each

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (
    *("docs/benchmarks/cpu/", "docs/benchmarks/networks/", "docs/benchmarks/accelerate/"),
    *("kernels/eqlayers_kernels/c/print/loops.py", "kernels/eqlayers_kernels/triton/kernels.py"),
    "tests/repository/test_plain_english.py",
)

#: Phrase -> what to write in its place.
PHRASES = {
    r"who(?:m|so)?ever": "a user, a caller, any process",
    r"nobody|somebody|anybody": "a user, a caller, no process, none",
    r"whom": "name the person or the part",
    r"who ha(?:s|ve|d)(?: no| not)?": "without a GPU, with a checkout",
    r"that of|those of": "repeat the noun: the dtype of, the weights of",
    r"that which|those which": "name the thing",
    r"(?:as|than) those": "repeat the noun",
    r"of what": "name the thing",
    r"what is given": "the argument, the input",
    r"and its kin": "and similar functions",
    r"(?:is|are) said": "is printed, is reported",
    r"unasked": "by default",
    r"lest": "so that ... not",
}
#: Between two words: space, the start of a comment, or the end of one part of a string and the start of the next.
BETWEEN = r"""(?:\s|#:?|["']|[rfb]+(?=["']))+"""
FORBIDDEN = re.compile(
    rf"\b(?:{'|'.join('(' + phrase.replace(' ', BETWEEN) + ')' for phrase in PHRASES)})\b", re.IGNORECASE
)
#: The first words of a docstring that leave out what it is about.
OPENING = re.compile(r"(?:Those|That of|Of|What|Whatever|Who|The same|As|Nobody|Somebody)\b|None:")
#: The first words that docstrings of these folders leave out as well: a docstring opens with a noun or a verb.
STRICT = ("eqlayers", "kernels")
FRAGMENT = re.compile(
    r"(?:Where|From|Which|In|Before|Behind|So many|Such|Beside|By|With|Within|Without|When|Until|Under|Over|Around"
    r"|Along|At|After|Once|Directly|Like|For|Its|Itself|They|Made|Called|Summed|On|To|Into|Through|Between|Per|If|While)\b"
)
#: Local names and arguments that leave out what they hold.
RIDDLES = {"found", "given", "own"}
#: Folder -> most phrases and openings, and most of these names. The numbers may fall.
SOURCES = {"eqlayers": (0, 4), "kernels": (0, 0), "examples": (0, 25), "tests": (58, 334)}


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *(ROOT / "docs").rglob("*.md")]
    found += (ROOT / "configs").rglob("*.yaml")
    return sorted(page for page in found if not relative(page).startswith(LEFT_OUT))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def phrases_in(text: str) -> list[str]:
    """Forbidden phrases with their lines; a phrase may go on in the next line, comment or part of a string."""
    problems = []
    for hit in FORBIDDEN.finditer(text):
        words = " ".join(re.sub(r"""["'#:]+[frb]?""", " ", hit[0]).split())
        instead = list(PHRASES.values())[hit.lastindex - 1]
        problems.append(f"line {text.count(chr(10), 0, hit.start()) + 1}: {words!r}; write {instead}")
    return problems


def openings_in(nodes: Sequence[ast.AST], fragments: bool = True) -> list[str]:
    """Docstrings that do not begin with their subject or a verb, with their lines."""
    problems = []
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            begin = OPENING.match(text) or (FRAGMENT.match(text) if fragments else None)
            if begin:
                where = node.body[0].lineno
                problems.append(f"line {where}: a docstring begins with {begin[0]!r}; begin with the thing or a verb")
    return problems


def riddles_in(nodes: Sequence[ast.AST]) -> int:
    """Number of places where a local name or an argument is one of RIDDLES."""
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    return sum(name in RIDDLES for name in names)


def nodes_of(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


@each("page", pages(), ids=relative)
def test_pages(page: Path) -> None:
    found = phrases_in(page.read_text())
    assert not found, f"{relative(page)} is hard to read: " + "\n".join(found)


@pytest.mark.parametrize("folder", SOURCES)
def test_sources(folder: str) -> None:
    problems: list[str] = []
    riddles: Counter[str] = Counter()
    for path in sorted((ROOT / folder).rglob("*.py")):
        text, name = path.read_text(), relative(path)
        nodes = nodes_of(text)
        riddles["/".join(name.split("/")[:2])] += riddles_in(nodes)
        if not name.startswith(LEFT_OUT):
            problems += [f"{name}, {problem}" for problem in phrases_in(text) + openings_in(nodes, folder in STRICT)]
    most, most_riddles = SOURCES[folder]
    print(f"{folder}: {len(problems)} phrases and openings, at most {most}; {riddles.total()} names of")
    print(f"    {sorted(RIDDLES)}, at most {most_riddles}: {dict(riddles.most_common(9))}")
    assert len(problems) <= most, "hard to read:\n" + "\n".join(problems)
    assert riddles.total() <= most_riddles, f"name the thing that a new name of {sorted(RIDDLES)} holds: {riddles}"


@pytest.mark.parametrize(
    "text",
    [
        "The dtype is that of x.",
        "The dtype is that\nof x.",
        "# whoever\n# reads this",
        '"the weights, those " "of a layer"',
        'f"the weights are those "\n    f"of {layer}"',
        "Frames in two parts are found and are said.",
        "Who has no GPU sets it.",
    ],
)
def test_phrases_are_found(text: str) -> None:
    assert len(phrases_in(text)) == 1


@pytest.mark.parametrize("text", ["the part that often fails", "those offered", "that_of", "It said: what gives"])
def test_other_words_are_not(text: str) -> None:
    assert not phrases_in(text)


def test_openings_are_found() -> None:
    text = '"""What it is."""\n\n\ndef f():\n    """As g."""\n\n\nclass C:\n    r"""Asks whatever."""\n'
    text += '\n\ndef g():\n    """Where it is."""\n\n\ndef h():\n    """So much is open. So many rows."""\n'
    assert [line.split(";")[0] for line in openings_in(nodes_of(text))] == [
        "line 1: a docstring begins with 'What'",
        "line 5: a docstring begins with 'As'",
        "line 13: a docstring begins with 'Where'",
    ]
    assert len(openings_in(nodes_of(text), fragments=False)) == 2
