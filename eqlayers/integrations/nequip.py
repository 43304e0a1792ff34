"""NequIP's model modifier `enable_eqlayers`; NequIP finds it by an entry point, so this module need not be imported.

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
        """NequIP's gather, product and scatter as one call; still one of NequIP's own, so that it knows it."""

    def enable_eqlayers(
        cls: type,
        model: nn.Module,
        backend: str | None = None,
        targets: Iterable[str] | str | None = None,
        check: bool = True,
        radial: str | None = None,
        tolerance: float = 1e-4,
    ) -> nn.Module:
        """Compute e3nn's layers, and the sums over neighbours, with eqlayers; the numbers stay.

        Parameters, state dict and checkpoints are the same as without it.

        Args:
            cls: NequIP's scatter class.
            model: Changed in place.
            backend, targets, check, radial, tolerance: As of :func:`eqlayers.accelerate`; further keys of the modifier
                in a configuration.
        """
        _refuse_targets_without_python()
        options: dict[str, Any] = {"radial": radial, "tolerance": tolerance}
        report = accelerate(model, backend=backend, targets=targets, check=check, **options)
        for module in model.modules():
            if type(module) is AcceleratedScatter:  # it has no constructor arguments of NequIP's, so its class changes
                module.__class__ = EqlayersTensorProductScatter
        logging.getLogger(__name__).info("%s; %s", report.summary(), report.coverage)
        return model

    _modifier: Any = model_modifier(
        persistent=False, private=False, unsupported_devices=[], supported_compile_modes=["aotinductor"]
    )
    # The modifier is one of the whole model, as Allegro's models have no scatter; one bound method, as NequIP wants the
    # method of a name to be the same wherever it finds it, in our class that is derived from its scatter as well.
    _bound: Any = _modifier(classmethod(enable_eqlayers)).__get__(None, TensorProductScatter)
    TensorProductScatter.enable_eqlayers = GraphModel.enable_eqlayers = _bound

    def _search_packages(modify_utils: Any) -> None:
        """Let NequIP's search find the modifier for models of packages, whose classes are copies without it."""
        search = modify_utils.get_all_modifiers

        @functools.wraps(search)
        def get_all_modifiers(module: nn.Module, _all_modifiers: dict[str, Any] | None = None) -> dict[str, Any]:
            modifiers: dict[str, Any] = search(module, _all_modifiers)
            if getattr(module, "is_graph_model", False):
                modifiers.setdefault("enable_eqlayers", _bound)
            return modifiers

        modify_utils.get_all_modifiers = get_all_modifiers

    class _OnImport(MetaPathFinder):
        """Changes the search when NequIP imports it: NequIP loads this module before its models can be imported."""

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
        """Let NequIP's ahead-of-time compilation refuse our layers where a program without Python will load the file.

        A modifier is not told the target, so that the function that compiles has to look.
        """
        from nequip.scripts._compile_utils import COMPILE_TARGET_DICT
        from nequip.utils import aot

        export = aot.aot_export_model
        if hasattr(export, "__wrapped__"):
            return

        @functools.wraps(export)
        def checked(*args: Any, **kwargs: Any) -> Any:
            asked = inspect.signature(export).bind(*args, **kwargs).arguments
            outputs = set(asked["output_fields"])
            pairs = [name for name, fields in COMPILE_TARGET_DICT.items() if set(fields["output"]) == outputs]
            pairs = [name for name in pairs if name.startswith("pair_")]  # the pair styles of LAMMPS
            ours = any(type(module).__module__.startswith("eqlayers.") for module in asked["model"].modules())
            if pairs and ours:
                raise ConfigError(
                    f"the target {' or '.join(pairs)} must be of a model whose operators run without Python, as LAMMPS "
                    "has none, got one with the operators of eqlayers, which need it (eqlayers::edge_tables, "
                    "eqlayers::form). Leave out `--modifiers enable_eqlayers`, or compile for Python with `--target "
                    "ase`."
                )
            return export(*args, **kwargs)

        aot.aot_export_model = checked
