"""Programs of the documentation, loaded by their path: they are no part of a package."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


@cache
def loaded(path: str) -> ModuleType:
    """The module of a file below the repository; it imports files beside itself, as a program does."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(f"program_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module
