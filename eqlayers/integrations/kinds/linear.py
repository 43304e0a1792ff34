"""Linear maps of e3nn."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from ...e3nn_compat.state_dict import has_channel_axes
from ...irreps.algebra import as_irreps
from ...nn import Linear
from ..probes import Operands, Probe, call, draw
from ..replacement import Replacement, Rule, part_if
from ..structure import is_theirs
from .product import COMMON_ATTRIBUTES, refuse_generated

_ATTRIBUTES = ("irreps_in", *COMMON_ATTRIBUTES, "_compiled_main")
#: Whether a module is e3nn's, or of a class derived from that.
is_linear = partial(is_theirs, name="Linear", attributes=_ATTRIBUTES)


def refuse_linear(module: nn.Module) -> str | None:
    """Why an e3nn linear map must stay, or None."""
    if (reason := refuse_generated(module, "Linear", ("weight", "bias", "output_mask"))) is not None:
        return reason
    return "has channel axes (f_in, f_out), whose lengths e3nn does not keep" if has_channel_axes(module) else None


class AcceleratedLinear(Replacement, Linear):
    """Replacement of an ``e3nn.o3.Linear``."""

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Inputs for the comparison with the original."""
        dim = as_irreps(original.irreps_in).dim
        lead = () if original.shared_weights else (rows,)
        operands = {"x": draw("x", rows, dim)}
        for name, numel in (("weight", original.weight_numel), ("bias", original.bias_numel)):
            if numel:
                operands[name] = draw(name, *lead, numel)

        def run(module: nn.Module, o: Operands) -> Tensor:
            return call(module, o["x"], o.get("weight"), o.get("bias"))

        # e3nn's products compare the widths, this does not
        wider = operands | {"x": draw("x", rows, dim + 1)}
        return [Probe(operands, run, misfit=wider)]


RULE = Rule("linear", part_if(is_linear), refuse_linear, AcceleratedLinear.of)
