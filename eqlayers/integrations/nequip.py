"""NequIP's model modifier `enable_eqlayers`; NequIP finds it by an entry point, nobody needs to import this module.

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

import logging
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from torch import nn

from .modules import AcceleratedScatter
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

        Parameters, state dict and checkpoints are those of the model without it.

        Args:
            cls: NequIP's scatter class.
            model: Changed in place.
            backend, targets, check, radial, tolerance: As of :func:`eqlayers.accelerate`; further keys of the modifier
                in a configuration.

        Returns:
            ``model``.
        """
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
    # Of the whole model, as models of other packages (Allegro's) have no scatter; one bound method, as NequIP wants the
    # method of a name to be the same wherever it finds it, in our class that is derived from its scatter as well.
    _bound: Any = _modifier(classmethod(enable_eqlayers)).__get__(None, TensorProductScatter)
    TensorProductScatter.enable_eqlayers = GraphModel.enable_eqlayers = _bound
