"""Pages about results: one HTML file each, with its pictures inside, that a browser opens without a network."""

from ..core.errors import needs_packages

with needs_packages("eqlayers.pages", "train"):
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401

from .page import (
    COLOURS,
    GREY,
    Block,
    Code,
    Facts,
    Picture,
    Section,
    Table,
    Text,
    new_figure,
    number,
    save_figure,
    write_page,
)

__all__ = [
    "COLOURS",
    "GREY",
    "Block",
    "Code",
    "Facts",
    "Picture",
    "Section",
    "Table",
    "Text",
    "new_figure",
    "number",
    "save_figure",
    "write_page",
]
