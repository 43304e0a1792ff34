"""Sphinx configuration: MyST pages, executed notebooks, the reference from docstrings, the furo theme."""

import hashlib
import os
import sys
from functools import partial
from importlib.resources import files
from pathlib import Path

from jupyter_cache.executors import utils as executors

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "docs" / "extensions")]

import eqlayers  # noqa: E402

project = "eqlayers"
author = "the eqlayers authors"
copyright = "2026, the eqlayers authors"
release = version = eqlayers.__version__

extensions = [
    "myst_nb",
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

# Notebooks run in a folder of their own, with the code of this checkout and the commands of this environment. Results
# are kept under a hash of that code: the next build is quick, and a change of the code runs all notebooks again.
SOURCES = sorted([*ROOT.glob("eqlayers/**/*.py"), *ROOT.glob("kernels/**/*.py")])
code = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "docs" / "_build" / "notebooks" / code)
nb_execution_in_temp = True
nb_execution_raise_on_error = True
# seconds for one cell: a training took more than 300 beside the tests, on a machine that withheld its cores
nb_execution_timeout = 1200
executors.executenb = partial(executors.executenb, coalesce_streams=True)  # a command is read in pieces
os.environ["MATPLOTLIBRC"] = str(ROOT / "docs" / "tutorials" / "matplotlibrc")
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # of tqdm, which asks for widgets in a notebook
os.environ["BASH_ENV"] = str(ROOT / "docs" / "tutorials" / "bashrc")
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])


def setup(app):
    """Put MathJax among the static files."""
    folder = files("mathjax") / "static" / "mathjax" / "es5"
    app.config.html_static_path.append(str(folder / mathjax_path))
