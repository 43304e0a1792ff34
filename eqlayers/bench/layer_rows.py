"""Layers of the catalogue in `eqlayers bench layers`: this package's beside its peer, on the same operands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..functional.product import chosen
from ..graph import Graph
from .implementation import OURS, default_dtype
from .layer_cases import PEER_OF, LayerCase
from .layer_subjects import Candidate, Makers, Outputs, Subject, leaf
from .pairs import PAIRS


def build_row(case: LayerCase, device: torch.device, backend: str | None = None) -> Subject:
    """Draw the operand of a case, and prepare both; random numbers depend on the case alone."""
    torch.manual_seed(0)
    pair, irreps, dtype = PAIRS[case.layer], str(case.options["irreps"]), getattr(torch, case.dtype)
    peer = PEER_OF[case.layer]
    given = pair.moving(irreps, case.rows).to(device)
    further = pair.further(irreps, case.rows, device)

    def theirs(dtype: torch.dtype) -> Any:
        torch.manual_seed(0)
        with default_dtype(torch.float64):  # the same weights in every dtype
            layer = pair.theirs(irreps)
        if isinstance(layer, torch.nn.Module):
            return layer.to(device, dtype)
        with default_dtype(dtype):
            return pair.theirs(irreps)

    def candidate(name: str, layer: Any, dtype: torch.dtype, note: str) -> Candidate:
        weights = dict(layer.named_parameters()) if isinstance(layer, torch.nn.Module) else {}
        others = [leaf(t.to(device), dtype) if _moves(t) else t for t in further]
        inputs = (*(weights[n] for n in sorted(weights)), *filter(_moves, others))
        return Candidate(name, lambda x: _tuple(layer(x, *others)), leaf(given, dtype), inputs, note)

    def own() -> Candidate:
        layer, other = pair.ours(irreps), theirs(dtype)
        if isinstance(layer, torch.nn.Module):
            layer.to(device, dtype)
            layer.load_state_dict(other.state_dict() if isinstance(other, torch.nn.Module) else {}, strict=False)
        return candidate(OURS, layer, dtype, chosen(device.type, dtype, backend, ""))

    def exact() -> Iterator[Candidate]:
        yield candidate(peer, theirs(torch.float64), torch.float64, "")

    makers: Makers = {OURS: own, peer: lambda: candidate(peer, theirs(dtype), dtype, "eager")}
    constants = tuple(t.edge_index if isinstance(t, Graph) else t for t in further if not _moves(t))
    return Subject(makers, exact, constants, dict.fromkeys(case.directions, 0))


def _moves(operand: Any) -> bool:
    """Whether there are gradients by it."""
    return isinstance(operand, Tensor) and operand.is_floating_point()


def _tuple(found: Any) -> Outputs:
    return (found,) if isinstance(found, Tensor) else tuple(found)
