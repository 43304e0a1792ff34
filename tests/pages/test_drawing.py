"""A figure is an element of a page whose colours it takes; numbers have four digits."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from eqlayers.pages.drawing import COLOURS, as_svg, new_figure, number, save_figure
from tests.each import each


def curve() -> Figure:
    figure = new_figure(2.0, 1.5)
    axis = figure.subplots()
    axis.plot([1, 2], [3, 4], label="curve", color=COLOURS[0])
    axis.legend()
    return figure


def test_pictures_take_the_colours_of_the_page() -> None:
    svg = as_svg(curve(), "curve")
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert "var(--paper)" in svg
    assert "#000000" not in svg
    assert "#ffffff" not in svg
    assert COLOURS[0] in svg, "curves keep their colours"
    assert ">curve</text>" in svg, "texts are outlines"


def test_parts_of_a_figure_have_the_name_of_the_figure() -> None:
    """Two figures of one page then refer to their parts alone, and an equal figure is written equally."""
    first, second = as_svg(curve(), "first"), as_svg(curve(), "second")
    names = set(re.findall(r'\bid="([^"]*)"', first))
    assert names
    assert all(name.startswith("first-") for name in names)
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', first)) <= {(n, "") for n in names} | {
        ("", n) for n in names
    }
    assert names.isdisjoint(re.findall(r'\bid="([^"]*)"', second))
    assert as_svg(curve(), "first") == first


def test_a_file_is_a_picture_of_the_size_in_inches(tmp_path: Path) -> None:
    save_figure(curve(), tmp_path / "curve.png")
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
    assert number(value) == text
