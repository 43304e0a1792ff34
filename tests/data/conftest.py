"""Shared by the tests of the data sets: QM9's raw format on a few molecules, and small sets of molecules."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from eqlayers.data.structures import StructureArrays

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "qm9"


@pytest.fixture(scope="session")
def maker() -> ModuleType:
    """The script that wrote the fixture."""
    spec = importlib.util.spec_from_file_location("make_fixture", FIXTURE / "make_fixture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def records(maker: ModuleType) -> list[dict[str, Any]]:
    return maker.make_records()


@pytest.fixture
def gdb9_root(tmp_path: Path) -> Path:
    """A folder with QM9's three text files in raw/."""
    shutil.copytree(FIXTURE / "raw", tmp_path / "qm9" / "raw", dirs_exist_ok=True)
    return tmp_path / "qm9"


@pytest.fixture
def small_set() -> Callable[..., StructureArrays]:
    """Builds molecules of C, H and O with random places, some fields replaced."""

    def build(num: int = 12, **replaced: Any) -> StructureArrays:
        rng = np.random.default_rng(3)
        n_atoms = rng.integers(2, 7, num)
        atoms = int(n_atoms.sum())
        fields = {
            "source": "test",
            "n_atoms": n_atoms.astype(np.int64),
            "z": rng.choice(np.array([1, 6, 8]), atoms),
            "pos": rng.normal(scale=2.0, size=(atoms, 3)).astype(np.float32),
            "y": rng.normal(size=num),
            "idx": np.arange(num) + 100,
        }
        return StructureArrays.of(**(fields | replaced))

    return build
