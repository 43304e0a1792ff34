"""The model modifier `enable_eqlayers` of NequIP, which NequIP imports through an entry point.

In a training configuration::

    model:
      _target_: nequip.model.modify
      modifiers:
        - modifier: enable_eqlayers
      model:
        _target_: nequip.model.NequIPGNNModel
        ...

and on the command line ``nequip-compile ... --mode aotinductor --modifiers enable_eqlayers``.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import nn

from ..core.errors import ConfigError
from .kinds.convolution import AcceleratedScatter
from .replace import accelerate

if find_spec("nequip") is not None:
    from nequip.nn import GraphModel
    from nequip.nn._tp_scatter_base import TensorProductScatter
    from nequip.nn.model_modifier_utils import model_modifier

    class EqlayersTensorProductScatter(AcceleratedScatter, TensorProductScatter):
        """Gather, product and scatter as one call, in a subclass of NequIP's class, which NequIP checks for."""

    def enable_eqlayers(
        cls: type,
        model: nn.Module,
        backend: str | None = None,
        targets: Iterable[str] | str | None = None,
        check: bool = True,
        radial: str | None = None,
        tolerance: float = 1e-4,
    ) -> nn.Module:
        """Compute e3nn's layers, and sums over neighbours, with eqlayers, with equal results.

        Parameters, state dict and checkpoints do not change.

        Args:
            cls: NequIP's scatter class.
            model: The model, changed in place.
            backend, targets, check, radial, tolerance: See :func:`eqlayers.accelerate`; optional keys of the modifier
                in a configuration.
        """
        _refuse_targets_without_python()
        options: dict[str, Any] = {"radial": radial, "tolerance": tolerance}
        report = accelerate(model, backend=backend, targets=targets, check=check, **options)
        for module in model.modules():
            if type(module) is AcceleratedScatter:  # its constructor differs from NequIP's
                module.__class__ = EqlayersTensorProductScatter
        logging.getLogger(__name__).info("%s; %s", report.summary(), report.coverage)
        return model

    _modifier: Any = model_modifier(
        persistent=False, private=False, unsupported_devices=[], supported_compile_modes=["aotinductor"]
    )
    # A modifier of the whole model, as models of Allegro have no scatter; and one bound method for all classes, as
    # NequIP requires methods of equal name to be identical, also in subclasses of its scatter.
    _bound: Any = _modifier(classmethod(enable_eqlayers)).__get__(None, TensorProductScatter)
    TensorProductScatter.enable_eqlayers = GraphModel.enable_eqlayers = _bound

    def _search_packages(modify_utils: Any) -> None:
        """Patch NequIP's search for modifiers to find this one in packaged models, whose classes are copies."""
        search = modify_utils.get_all_modifiers

        @functools.wraps(search)
        def get_all_modifiers(module: nn.Module, _all_modifiers: dict[str, Any] | None = None) -> dict[str, Any]:
            modifiers: dict[str, Any] = search(module, _all_modifiers)
            if getattr(module, "is_graph_model", False):
                modifiers.setdefault("enable_eqlayers", _bound)
            return modifiers

        modify_utils.get_all_modifiers = get_all_modifiers

    class _OnImport(MetaPathFinder):
        """Import hook that patches the search when NequIP imports it, after this module."""

        def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
            if fullname != _SEARCH:
                return None
            sys.meta_path.remove(self)
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module: ModuleType) -> None:
                    execute(module)
                    _search_packages(module)

                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    _SEARCH = "nequip.model.modify_utils"
    if _SEARCH in sys.modules:
        _search_packages(sys.modules[_SEARCH])
    else:
        sys.meta_path.insert(0, _OnImport())

    def _refuse_targets_without_python() -> None:
        """Let NequIP's ahead-of-time compilation, which gets the target, raise for targets without Python."""
        from nequip.scripts._compile_utils import COMPILE_TARGET_DICT
        from nequip.utils import aot

        export = aot.aot_export_model
        if hasattr(export, "__wrapped__"):
            return

        @functools.wraps(export)
        def checked(*args: Any, **kwargs: Any) -> Any:
            arguments = inspect.signature(export).bind(*args, **kwargs).arguments
            outputs = set(arguments["output_fields"])
            pairs = [name for name, fields in COMPILE_TARGET_DICT.items() if set(fields["output"]) == outputs]
            pairs = [name for name in pairs if name.startswith("pair_")]  # the pair styles of LAMMPS
            ours = any(type(module).__module__.startswith("eqlayers.") for module in arguments["model"].modules())
            if pairs and ours:
                raise ConfigError(
                    f"the target {' or '.join(pairs)} must be of a model whose operators run without Python, as LAMMPS "
                    "has none, got one with the operators of eqlayers, which need it (eqlayers::edge_tables, "
                    "eqlayers::form). Leave out `--modifiers enable_eqlayers`, or compile for Python with `--target "
                    "ase`."
                )
            return export(*args, **kwargs)

        aot.aot_export_model = checked
