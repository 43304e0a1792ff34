"""Convolutions of NequIP, MACE and others: a gather of senders, a product and a sum over receivers as one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled, nn, stack

from ...functional import TabledWeights, as_graph, tensor_product_conv
from ...layers.tensor_product.run import run_convolution
from ...nn import TensorProduct, TensorProductConv
from ..lazy import LazyMessages, LazyRows, all_computed, make_eager, make_lazy
from ..replacement import NODES, FusedReplacement, Operands, Probe, Replacement, Rule, call, part_if
from ..structure import adds_up, base_of, child_of, code_of, has_hooks, refuse_object
from .product import AcceleratedTensorProduct, ProductReplacement, draw_operands, is_product, refuse_product


def is_scatter(module: Any) -> bool:
    """Whether a module is NequIP's ``TensorProductScatter``: a product ``tp`` between a gather and a scatter."""
    if isinstance(module, Replacement) or not is_product(child_of(module, "tp")):
        return False
    code = code_of(type(module).forward)
    return (
        code is not None
        and code.co_varnames[: code.co_argcount] == ("self", "x", "edge_attr", "edge_weight", "edge_dst", "edge_src")
        and {"tp", "scatter"} <= set(code.co_names)
    )


def is_block(module: Any) -> bool:
    """Whether a module is a MACE interaction block: its forward reads ``conv_fusion`` and calls ``conv_tp``."""
    if not is_product(child_of(module, "conv_tp")):
        return False
    calls = [code for code in _forwards(type(module)) if "conv_tp" in code.co_names]
    return bool(calls) and all(  # each passes the edges to ``conv_tp`` if there is an attribute ``conv_fusion``
        "conv_fusion" in code.co_consts + code.co_names and "edge_index" in code.co_varnames for code in calls
    )


def messages_in(module: nn.Module) -> Sequence[str]:
    """Names of the products that a module's forward calls and sums by receivers, if they can be replaced."""
    if isinstance(module, (Replacement, torch.jit.ScriptModule)) or not adds_up(module):
        return ()
    code = code_of(type(module).forward)
    if code is None or refuse_object(module) is not None or hasattr(module, "conv_fusion") or is_block(module):
        return ()  # a block of MACE's adds up the results of one product, which has a rule of its own
    called = [name for name, child in module._modules.items() if name in code.co_names and is_product(child)]
    return [name for name in called if _refuse_fusion(module, name) is None]


def _forwards(cls: type) -> Iterator[CodeType]:
    """The code of ``forward`` of a class and of its base classes."""
    for ancestor in cls.__mro__:
        code = code_of(vars(ancestor).get("forward"))
        if code is not None and not ancestor.__module__.startswith("torch."):
            yield code


def refuse_scatter(module: nn.Module) -> str | None:
    """Why NequIP's ``TensorProductScatter`` cannot be replaced, or None."""
    if (reason := refuse_object(module)) is not None:
        return reason
    if set(vars(module)["_modules"]) != {"tp"} or vars(module)["_parameters"] or vars(module)["_buffers"]:
        return "holds more than its product"
    return _refuse_fusion(module, "tp")


def refuse_block(module: nn.Module) -> str | None:
    """Why the product of a MACE block cannot be replaced by a convolution, or None."""
    if hasattr(module, "conv_fusion"):
        return "has a fused convolution already"
    if "forward" in vars(module):
        return "has had its forward replaced on the object"
    return _refuse_fusion(module, "conv_tp")


def _refuse_fusion(module: nn.Module, name: str) -> str | None:
    """Why the product of this name in a module cannot be replaced by a convolution, or None."""
    product: Any = getattr(module, name)
    reason = refuse_product(product)
    if reason is None and base_of(product, "TensorSquare") is not None:
        reason = "is a square, not a product of two features"
    if reason is None and has_hooks(product):
        reason = "has hooks that would not see the edges"
    return None if reason is None else f"holds {name}, which {reason}"


class _Convolution(FusedReplacement, ProductReplacement):
    """Mixin: gather, product and sum over edges in one call."""

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Random operands; rows are edges of a small graph, in which one node has no edges."""
        edges = torch.arange(rows, device="cpu")
        src, dst = edges % (NODES - 1), (edges * 2 + 1) % (NODES - 1)

        def run(module: nn.Module, o: Operands) -> Tensor:
            return _run(module, o["x"], o["y"], o["weight"], *(end.to(o["x"].device) for end in (src, dst)))

        return [Probe(draw_operands(original.get_submodule(self._product), rows, NODES), run)]


class AcceleratedScatter(_Convolution):
    """Replacement of NequIP's ``TensorProductScatter``."""

    _product = "tp"

    def __init__(self, original: Any, backend: str | None = None) -> None:
        super().__init__()
        self.tp = AcceleratedTensorProduct.of(original.tp, backend)

    def forward(
        self, x: Tensor, edge_attr: Tensor, edge_weight: Tensor | TabledWeights, edge_dst: Tensor, edge_src: Tensor
    ) -> Tensor:
        """``[N, in1.dim]``, ``[E, in2.dim]``, weights, receivers and senders ``[E]`` to ``[N, out.dim]``."""
        edges = stack([edge_src, edge_dst])
        if isinstance(edge_weight, TabledWeights):
            graph, plan = as_graph(edges, x.shape[0]), self.tp.plan
            return run_convolution(plan, x, edge_attr, edge_weight, graph, None, False, self.tp.backend, True)
        return tensor_product_conv(self.tp.plan, x, edge_attr, edge_weight, edges, backend=self.tp.backend)


class AcceleratedConvolution(_Convolution, TensorProductConv):
    """Replacement of the ``conv_tp`` of a MACE interaction block, which then passes it the edges."""

    def mark(self, parent: nn.Module) -> None:
        """Set ``conv_fusion``."""
        vars(parent)["conv_fusion"] = "eqlayers"

    def unmark(self, parent: nn.Module) -> None:
        """Delete ``conv_fusion``."""
        vars(parent).pop("conv_fusion", None)


class AcceleratedMessages(_Convolution, TensorProduct):
    """Replacement of a product between a gather and a sum: for gathered rows that are lazy, the sum is a convolution.

    See :mod:`.lazy`.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module without computing lazy rows, unless it has hooks."""
        return super().__call__(*args, **kwargs) if has_hooks(self) else nn.Module.__call__(self, *args, **kwargs)

    def forward(self, x: Any, y: Any, weight: Any = None) -> Any:
        """Rows ``[E, in1.dim]``, ``[E, in2.dim]`` and weights to messages ``[E, out.dim]``, lazy for lazy rows."""
        y, weight = (value.computed() if isinstance(value, LazyRows) else value for value in (y, weight))
        if not isinstance(x, LazyRows) or x.is_computed:
            return self.rows(all_computed(x), y, weight)
        one_each = y.ndim == 2 and len(y) == len(x)
        if isinstance(weight, Tensor) and weight.ndim > 1:
            one_each = one_each and weight.ndim == 2 and len(weight) == len(x)
        fits = one_each and x.shape[1] == self.irreps_in1.dim and x.dtype == y.dtype
        fits = fits and x.tracked == is_grad_enabled() and not is_autocast_enabled(x.device.type)
        return LazyMessages(self, x, y, weight) if fits else self.rows(x.computed(), y, weight)

    def rows(self, x: Tensor, y: Tensor, weight: Any) -> Tensor:
        """Product: ``[E, in1.dim]``, ``[E, in2.dim]`` and weights to ``[E, out.dim]``."""
        weight = weight.weights() if isinstance(weight, TabledWeights) else weight
        return super().forward(x, y, weight)

    def sums(self, x: Tensor, y: Tensor, weight: Any, src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
        """Convolution: ``[N, in1.dim]``, ``[E, in2.dim]``, weights, senders, receivers to ``[num_nodes, out.dim]``."""
        w, shared = weight, False
        if not isinstance(weight, TabledWeights):
            w = self._weights.read(weight, self.weight, self.internal_weights, self.shared_weights)
            shared = w.ndim == 1
        graph = as_graph(stack([src, dst]), x.shape[0], num_nodes)
        return run_convolution(self.plan, x, y, w, graph, None, shared, self.backend, True)

    def mark(self, parent: nn.Module) -> None:
        """Make the forward of the parent lazy, if it sums rows."""
        make_lazy(parent)

    def unmark(self, parent: nn.Module) -> None:
        """Make the forward of the parent eager again."""
        make_eager(parent)


RULES = (
    Rule("convolution", part_if(is_scatter), refuse_scatter, AcceleratedScatter.of, inner="tp"),
    Rule("convolution", part_if(is_block, "conv_tp"), refuse_block, AcceleratedConvolution.of),
    Rule("convolution", messages_in, lambda module: None, AcceleratedMessages.of, anywhere=True),
)


def _run(module: Any, x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Sums over receivers ``[N, out.dim]``, by a convolution of any class, or by a product and ``index_add``."""
    if isinstance(module, AcceleratedMessages):
        return module.sums(x, y, w, src, dst, len(x))
    if isinstance(module, AcceleratedConvolution):
        return call(module, x, y, w, stack([src, dst]))
    if is_scatter(module) or isinstance(module, AcceleratedScatter):
        return call(module, x, y, w, dst, src)
    messages = call(module, x.index_select(0, src), y, w)
    return messages.new_zeros(len(x), messages.shape[-1]).index_add(0, dst, messages)
