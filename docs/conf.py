"""Sphinx configuration: MyST pages, the reference from docstrings, the furo theme."""

import sys
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "docs" / "extensions")]

import eqlayers  # noqa: E402

project = "eqlayers"
author = "the eqlayers authors"
copyright = "2026, the eqlayers authors"
release = version = eqlayers.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "written_parts",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
suppress_warnings = ["myst.xref_missing"]  # links to files beside docs/; tests/test_docs.py checks that they exist

autodoc_default_options = {"members": True, "imported-members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"eqlayers {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_last_updated_fmt = None
copybutton_exclude = ".linenos, .gp, .go"

# MathJax is shipped with the pages: one file with all extensions, from a package that holds a release of it.
mathjax_path = "tex-svg-full.js"
mathjax3_config = {"options": {"enableMenu": False}}  # its menu would fetch files


def setup(app):
    """Put MathJax among the static files."""
    folder = files("mathjax") / "static" / "mathjax" / "es5"
    app.config.html_static_path.append(str(folder / mathjax_path))
