"""Parts of pages that are written from the code when the site is built, so that they cannot go stale.

A page asks for such a part by a fenced block:

- ``{names} MODULE``: tables of the public names of a module, a page for each class, and its functions;
- ``{commands}``: what every command prints for `--help`;
- ``{keys} FILE``: the keys of a commented YAML file, with value, meaning and unit.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import io
import os
import re
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

DOCS = Path(__file__).resolve().parents[1]
FOLDER = "names"  # of the pages of classes, in docs/reference; git ignores it
BLOCK = re.compile(r"^```\{(names|commands|keys)\}(.*)\n```$", re.MULTILINE)
COLUMNS = 88
EVERY = "--help-all"  # of training commands; --help is one page


def setup(app: Any) -> dict[str, Any]:
    """Make the pages of classes before Sphinx looks for pages, and fill in parts when it reads one."""
    app.connect("builder-inited", lambda app: write_classes(DOCS / "reference"))
    app.connect("source-read", lambda app, name, source: source.__setitem__(0, filled(source[0])))
    app.connect("env-get-outdated", lambda app, env, added, changed, removed: with_blocks())
    app.connect("html-page-context", with_known_anchors)
    app.connect("include-read", with_pages_of_the_site)
    return {"parallel_read_safe": True}


def with_pages_of_the_site(app: Any, file: Path, page: str, text: list[str]) -> None:
    """Lead links between top-level files to the pages that include the files."""
    text[0] = re.sub(
        r"\]\((?:\.github/)?(CHANGELOG|CONTRIBUTING|SECURITY)\.md",
        lambda link: f"](docs/development/{link[1].lower()}.md",
        text[0],
    )


def with_known_anchors(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Correct links from pages of source code to the reference.

    Sphinx gives all objects of a source file the module of the first that is documented; two fronts may share a file.
    """
    if not page.startswith("_modules/"):
        return
    known = app.env.domaindata["py"]["objects"]

    def corrected(link: re.Match[str]) -> str:
        name = link[1] if link[1] in known else None
        name = name or next((one for one in known if one.rpartition(".")[2] == link[1].rpartition(".")[2]), link[1])
        return f'#{name}"'

    context["body"] = re.sub(r'#(eqlayers\.[\w.]+)"', corrected, context["body"])


def with_blocks() -> list[str]:
    """The pages that hold a block: they are read in every build, as the code may have changed."""
    pages = (DOCS / "reference").glob("*.md")
    return ["reference/index", *(f"reference/{page.stem}" for page in pages if BLOCK.search(page.read_text()))]


def filled(text: str) -> str:
    """A page with its blocks replaced, and with links from the top-level names to their pages."""
    writers = {"names": names, "commands": commands, "keys": keys}
    text = BLOCK.sub(lambda found: writers[found[1]](found[2].strip()), text)
    return re.sub(r"^\| `eqlayers\.(\w+)` \|", linked, text, flags=re.MULTILINE)


#: Rooms without a page of their own: public fronts export their classes.
ROOMS = ("eqlayers.core.", "eqlayers.irreps.", "eqlayers.layers.")


def linked(found: re.Match[str]) -> str:
    """The cell of a top-level name, with a link if the name is a class that has a page."""
    import eqlayers

    value = getattr(eqlayers, found[1])
    homes = [
        name for name in modules(DOCS / "reference") if getattr(importlib.import_module(name), found[1], 0) is value
    ]
    pages = [f"{home}.{found[1]}.md" for home in homes if found[1] in classes(importlib.import_module(home))]
    return f"| [`eqlayers.{found[1]}`]({FOLDER}/{pages[0]}) |" if pages else found[0]


def modules(reference: Path) -> list[str]:
    """The modules that pages of the reference ask for."""
    pages = "\n".join(page.read_text() for page in sorted(reference.glob("*.md")))
    return [found[2].strip() for found in BLOCK.finditer(pages) if found[1] == "names"]


def write_classes(reference: Path) -> None:
    """One page for each class; pages of classes that are gone are removed, and unchanged ones left alone."""
    folder = reference / FOLDER
    folder.mkdir(exist_ok=True)
    wanted = {}
    for name in modules(reference):
        for each in classes(importlib.import_module(name)):
            wanted[f"{name}.{each}.md"] = f"# {each}\n\n" + directive("autoclass", f"{name}.{each}")
    for page in folder.glob("*.md"):
        if page.name not in wanted:
            page.unlink()
    for name, text in wanted.items():
        page = folder / name
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def classes(module: ModuleType) -> list[str]:
    """The names of a module that have a page: its own classes, without errors, which are a line each."""
    own = {name: getattr(module, name) for name in module.__all__}
    return [
        name
        for name, value in own.items()
        if inspect.isclass(value)
        and not issubclass(value, BaseException)
        and value.__module__.startswith((module.__name__, *(() if module.__name__ == "eqlayers.o3" else ROOMS)))
    ]


def families() -> dict[str, str]:
    """The heading of each layer in the catalogue."""
    found: dict[str, str] = {}
    text = (DOCS / "reference" / "catalogue.md").read_text()
    for heading, part in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        for name in re.findall(r"^\| `(\w+)", part, re.MULTILINE):
            found.setdefault(name, heading)
    return found


def names(name: str) -> str:
    """Tables of a module's names, grouped as the catalogue is, and what has no page of its own."""
    module = importlib.import_module(name)
    own, family = classes(module), families() if name == "eqlayers.nn" else {}
    groups: dict[str, list[str]] = {}
    for each in own:
        groups.setdefault(family.get(each, "Other classes" if family else "Classes"), []).append(each)
    parts = [directive("automodule", name, no_members=True)]
    for heading in sorted(groups, key=lambda heading: (heading == "Other classes", heading)):
        rows = [row(f"[`{each}`]({FOLDER}/{name}.{each}.md)", getattr(module, each)) for each in groups[heading]]
        parts += [f"### {heading}", table("class", rows)]
    if name != "eqlayers.o3":  # its names are e3nn's, or have a page in eqlayers.nn
        parts += without_page(module, [each for each in module.__all__ if each not in own])
    if own:
        entries = "\n".join(f"{FOLDER}/{name}.{each}" for each in sorted(own, key=str.lower))
        parts.append(f"```{{toctree}}\n:hidden:\n\n{entries}\n```")
    return "\n\n".join(parts)


def without_page(module: ModuleType, names: list[str]) -> list[str]:
    """Errors and functions, as a table and in full below it; other values as a table."""
    kinds: dict[str, list[str]] = {"autoexception": [], "autofunction": [], "value": []}
    for name in names:
        value = getattr(module, name)
        kinds["autoexception" if inspect.isclass(value) else "autofunction" if callable(value) else "value"].append(
            name
        )
    parts = []
    for kind, what in (("autoexception", "Error"), ("autofunction", "Function")):
        if kinds[kind]:
            rows = [row(f"[`{name}`](#{module.__name__}.{name})", getattr(module, name)) for name in kinds[kind]]
            parts += [f"### {what}s", table(what.lower(), rows)]
            parts += [directive(kind, f"{module.__name__}.{name}") for name in kinds[kind]]
    if kinds["value"]:
        rows = [f"| `{name}` | {', '.join(f'`{each}`' for each in getattr(module, name))} |" for name in kinds["value"]]
        parts += ["### Values", table("value", rows).replace("what it is", "what it holds")]
    return parts


def directive(kind: str, name: str, *, no_members: bool = False) -> str:
    """A block of autodoc."""
    option = "\n   :no-members:" if no_members else ""
    return f"```{{eval-rst}}\n.. {kind}:: {name}{option}\n```\n"


def row(link: str, value: object) -> str:
    """A row: a name, and the first sentence of its docstring."""
    head = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    head = re.sub(r":math:`([^`]+)`", r"$\1$", head)
    head = re.sub(r":\w+:`~?\.?([^`]+)`", lambda found: f"`{found[1]}`", head)  # roles of Sphinx become code
    head = re.sub(r"(?<!`)``([^`]+)``", r"`\1`", head)
    return f"| {link} | {head.replace('|', chr(92) + '|')} |"


def table(what: str, rows: list[str]) -> str:
    """Rows below a heading."""
    return "\n".join([f"| {what} | what it is |", "|---|---|", *rows])


def commands(_: str = "") -> str:
    """The helps of all commands, a heading each."""
    from eqlayers import bench
    from eqlayers.cli import main as cli

    found = {"eqlayers": (), **{f"eqlayers {name}": (name,) for name in subcommands(cli.parser())}}
    for task in ("property", "potential"):
        found[f"eqlayers fit --task {task}"] = ("fit", "--task", task, EVERY)
    found["eqlayers predict -m FILE"] = ("predict", "-m", "FILE")
    found["eqlayers info FILE"] = ("info", "FILE")
    parts = [f"## `{title}`\n\n{command_help(*words)}" for title, words in sorted(found.items(), key=in_order)]
    benches = importlib.import_module(f"{bench.__name__}.cli").parser()
    parts += [f"## `eqlayers bench {name}`\n\n{command_help('bench', name)}" for name in subcommands(benches)]
    return "\n\n".join(parts)


def in_order(item: tuple[str, tuple[str, ...]]) -> tuple[int, tuple[str, ...]]:
    """The program itself first, then commands by name."""
    return (len(item[1]) > 0, item[1])


def subcommands(parser: argparse.ArgumentParser) -> list[str]:
    """The names that a parser takes as its first word."""
    return [name for action in parser._actions if isinstance(action.choices, dict) for name in action.choices]


def command_help(*words: str) -> str:
    """The help that a command prints: all options, where it has two helps."""
    from eqlayers.cli.main import main

    printed = io.StringIO()
    width = mock.patch.dict(os.environ, {"COLUMNS": str(COLUMNS)})
    with width, redirect_stdout(printed), redirect_stderr(printed), suppress(SystemExit):
        main([*words] if words[-1:] == (EVERY,) else [*words, "--help"])
    text = printed.getvalue().rstrip()
    if not text.startswith("usage: eqlayers"):
        raise ValueError(f"`eqlayers {' '.join(words)} --help` must begin with its usage, got:\n{text}")
    lines = [re.sub(r" {3,}\(", "  (", line) if len(line) > COLUMNS else line for line in text.splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```"


def keys(file: str) -> str:
    """The keys of a commented YAML file as a table."""
    rows, above = ["| key | value here | meaning and unit |", "|---|---|---|"], [(-1, "")]
    for line in (DOCS.parent / file).read_text().splitlines():
        found = re.match(r"( *)([\w.]+):(?: +([^#]*?))?(?: +# (.*))?$", line)
        if not found:
            continue
        indent, name, value, comment = len(found[1]), found[2], found[3], found[4]
        while above[-1][0] >= indent:
            above.pop()
        path = f"{above[-1][1]}.{name}".lstrip(".")
        above.append((indent, path))
        if value:
            rows.append(f"| `{path}` | `{value}` | {(comment or '').replace('|', chr(92) + '|')} |")
    return "\n".join(rows)
