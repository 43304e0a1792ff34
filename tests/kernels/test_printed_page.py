"""The page about printed kernels shows the C kernel and the Triton kernel whole."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/guide/printed_kernels.md").read_text()
#: Heading of a section -> language of its blocks, and the name that the page gives to the printed source.
KERNELS = {"C": ("c", "c_source"), "Triton": ("text", "triton_source")}


def blocks(language: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def section(heading: str) -> str:
    return re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def joined(shown: list[str], source: str) -> str:
    """Blocks one after the other, with the blank lines of the source at the cuts and at its end."""
    text = ""
    for block in shown:
        blank = re.match(r"(?:[ ]*\n)*", source[len(text) :])
        text += (blank[0] if blank else "") + block
    return text + (source[len(text) :] if not source[len(text) :].strip() else "")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names of the page's Python, and under ``printed`` what it prints."""
    names: dict[str, Any] = {}
    with redirect_stdout(StringIO()) as printed:
        for block in blocks("python"):
            exec(block, names)
    return {**names, "printed": printed.getvalue()}


@pytest.mark.parametrize("heading", KERNELS)
def test_the_blocks_of_a_kernel_are_its_source(heading: str, page: dict[str, Any]) -> None:
    language, name = KERNELS[heading]
    shown = blocks(language, section(heading))
    assert len(shown) > 4, f"section {heading} must explain the kernel block by block, got {len(shown)} blocks"
    assert joined(shown, page[name]).splitlines() == page[name].splitlines()


def test_the_operands_of_a_derivative_are_as_printed(page: dict[str, Any]) -> None:
    (printed,) = blocks("text", section("Derivatives"))
    assert printed in page["printed"]
