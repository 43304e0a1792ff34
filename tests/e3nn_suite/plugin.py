"""pytest plugin: every e3nn class of which there is one of ours is ours, wherever an e3nn module names it.

``pytest -p plugin --layers eqlayers`` with this folder on PYTHONPATH; ``--layers e3nn`` changes nothing and serves as
the comparison. Both draw the same random cases, so that test names agree.
"""

import importlib
import pkgutil
import random
import sys
import warnings
from collections.abc import Generator
from typing import Any

import pytest
import torch

#: Package of e3nn -> its classes of which `eqlayers.nn` has one of the same name.
CLASSES = {
    "o3": (
        "ElementwiseTensorProduct",
        "FullTensorProduct",
        "FullyConnectedTensorProduct",
        "Linear",
        "Norm",
        "SphericalHarmonics",
        "TensorProduct",
        "TensorSquare",
    ),
    "nn": (
        "Activation",
        "BatchNorm",
        "Dropout",
        "Extract",
        "ExtractIr",
        "Gate",
        "Identity",
        "NormActivation",
        "S2Activation",
        "SO3Activation",
    ),
    "io": ("CartesianTensor",),
}
NAMES = tuple(name for names in CLASSES.values() for name in names)


def swap() -> dict[str, int]:
    """Put our classes into e3nn's loaded modules; how many attributes changed, by class."""
    import e3nn

    from eqlayers import nn

    for found in pkgutil.walk_packages(e3nn.__path__, "e3nn."):
        try:
            importlib.import_module(found.name)
        except ImportError as error:  # an optional dependency of e3nn is missing; no test can use the module either
            if (error.name or "e3nn").startswith("e3nn"):
                raise
    table = {
        getattr(sys.modules[f"e3nn.{package}"], name): getattr(nn, name)
        for package in CLASSES
        for name in CLASSES[package]
    }
    changed = dict.fromkeys(NAMES, 0)
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] != "e3nn":
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, type) and value in table:
                setattr(module, attribute, table[value])
                changed[value.__name__] += 1
    return changed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--layers", choices=("eqlayers", "e3nn"), default="eqlayers", help="whose classes e3nn holds")


_changed: dict[str, int] = {}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--layers") == "eqlayers":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _changed.update(swap())
        if 0 in _changed.values():
            raise pytest.UsageError(f"e3nn must name each of {NAMES}, got {_changed}. Adapt the list to this version.")


def pytest_report_header(config: pytest.Config) -> str:
    return f"layers: {config.getoption('--layers')}, attributes of e3nn's modules changed: {_changed or 'none'}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Set the default dtype back: one test of e3nn sets float64 for good, in which those after it would run or skip."""
    before = torch.get_default_dtype()
    try:
        return (yield)
    finally:
        torch.set_default_dtype(before)


def pytest_collectstart(collector: Any) -> None:
    random.seed(0)  # e3nn's files draw their cases while they are imported
