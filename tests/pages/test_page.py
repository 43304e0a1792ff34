"""A page is one valid file that refers to nothing outside, in the reader's colours, as its figures are."""

import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from eqlayers.pages import page as pages
from eqlayers.pages.page import Block, Code, Facts, Picture, Section, Table, Text, new_figure, write_page
from tests.each import each

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Reader(HTMLParser):
    """Opens and closes elements as a browser does, and keeps what they refer to and are named."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.targets: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"{self.open} are never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.names.append(value or "")
            elif name in ("href", "src"):
                self.targets.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def drawn() -> Picture:
    figure = new_figure()
    axis = figure.subplots()
    axis.plot([1, 2], [3, 4], label="curve")
    axis.legend()
    axis.scatter([1, 2], [3, 4], rasterized=True)
    return Picture(figure, "a curve")


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., tuple[str, Reader]]:
    def write(*blocks: Block) -> tuple[str, Reader]:
        write_page(tmp_path / "a.html", "A <run>", "In short.", [Section("All of it", blocks), Section("None", [])])
        text = (tmp_path / "a.html").read_text()
        return text, Reader(text)

    return write


def test_a_page_is_whole_and_refers_to_nothing_outside(read: Callable[..., tuple[str, Reader]]) -> None:
    table = Table(("name", "number"), [("x & y", "1"), ("z", "2")], "A caption.")
    text, page = read(Text("a < b"), Facts({"seed": "7"}), table, Code("configuration", "a: 1"), drawn(), drawn())
    for part in ("A &lt;run&gt;", "a &lt; b", "x &amp; y", "A caption.", "<dt>seed</dt><dd>7</dd>", "<pre>a: 1</pre>"):
        assert part in text
    assert '<td class="number">2</td>' in text
    assert "http" not in text
    assert "@import" not in text
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in page.targets)
    assert any(target.startswith("data:") for target in page.targets), "no picture of many points"
    assert len(page.names) == len(set(page.names)), "two things of one name"
    assert {target[1:] for target in page.targets if target.startswith("#")} <= set(page.names)


def test_sections_without_content_are_absent(read: Callable[..., tuple[str, Reader]]) -> None:
    text, page = read(Text("words"))
    assert page.names == ["all-of-it"]
    assert "None" not in text
    assert "<svg" not in text


def curve() -> Figure:
    figure = new_figure(2.0, 1.5)
    axis = figure.subplots()
    axis.plot([1, 2], [3, 4], label="curve", color=pages.COLOURS[0])
    axis.legend()
    return figure


def test_pictures_take_the_colours_of_the_page() -> None:
    svg = pages.as_svg(curve(), "curve")
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert "var(--paper)" in svg
    assert "#000000" not in svg
    assert "#ffffff" not in svg
    assert pages.COLOURS[0] in svg, "curves keep their colours"
    assert ">curve</text>" in svg, "texts are outlines"


def test_parts_of_a_figure_have_the_name_of_the_figure() -> None:
    """Two figures of one page then refer to their parts alone, and an equal figure is written equally."""
    first, second = pages.as_svg(curve(), "first"), pages.as_svg(curve(), "second")
    names = set(re.findall(r'\bid="([^"]*)"', first))
    assert names
    assert all(name.startswith("first-") for name in names)
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', first)) <= {(n, "") for n in names} | {
        ("", n) for n in names
    }
    assert names.isdisjoint(re.findall(r'\bid="([^"]*)"', second))
    assert pages.as_svg(curve(), "first") == first


def test_a_file_is_a_picture_of_the_size_in_inches(tmp_path: Path) -> None:
    pages.save_figure(curve(), tmp_path / "curve.png")
    content = (tmp_path / "curve.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert [int.from_bytes(content[at : at + 4], "big") for at in (16, 20)] == [320, 240]  # 160 dots to an inch
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


@each(
    "value, text",
    [
        (None, "-"),
        (math.nan, "-"),
        (0, "0"),
        (-0.0123456, "-0.01235"),
        (9999.0, "9999"),
        (-58765.4, "-58,765"),
        (1e7, "10,000,000"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_four_digits_and_no_large_exponents(value: float | None, text: str) -> None:
    assert pages.number(value) == text
