"""Replacements of e3nn's layers in a model, each with the original object.

The original is kept outside the registered submodules: it adds no parameters, no keys of the state dict and no moves
between devices. It is pickled and copied with its replacement, so that a saved model can be turned back as well; the
weights are written once, for both hold the same Parameters.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, is_autocast_enabled, is_grad_enabled, nn, no_grad, stack

from ..core.errors import ConfigError
from ..functional import TabledWeights, as_graph, tensor_product_conv
from ..layers.tensor_product.run import run_convolution
from ..nn import Linear, TensorProduct, TensorProductConv, TensorSquare
from .notes import Messages, Note, settled
from .noting import note, unnote
from .structure import has_hooks

#: What a replacement does not take over from the attributes of its original.
_OWN = ("_modules", "_parameters", "_buffers", "_original", "__codegen__", "sph_func")


class Replacement(nn.Module):
    """Mixin: a module that stands in for another, with its Parameters, hooks, mode and further attributes."""

    #: NequIP imports these before it loads a compiled model.
    _nequip_custom_ops_libs: ClassVar[tuple[str, ...]] = ("eqlayers.nn",)  # what registers the operators

    #: Attributes of both that users change.
    _settings: ClassVar[tuple[str, ...]] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Layers get numbers, also of rows that were only noted."""
        if any(isinstance(value, Note) for value in (*args, *kwargs.values())):
            args, kwargs = settled(args), settled(kwargs)
        return super().__call__(*args, **kwargs)

    def mark(self, parent: nn.Module) -> None:
        """Tell the parent, while the replacement is in place, that it is called in another way."""

    def unmark(self, parent: nn.Module) -> None:
        """Take back what :meth:`mark` did."""

    @property
    def original(self) -> nn.Module:
        """The module that this one stands in for, as it was; :func:`deaccelerate` brings it up to date."""
        module: nn.Module = vars(self)["_original"]
        return module

    def stand_in_for(self, original: nn.Module) -> None:
        """Take over all that is not numbers: hooks (the very dictionaries), mode, attributes that we lack."""
        mine = vars(self)
        theirs = {name: value for name, value in vars(original).items() if name not in _OWN}
        taken = {name: value for name, value in theirs.items() if name not in mine or "hook" in name}
        mine.update(taken, _original=original, _taken=tuple(taken))
        for name in ("training", "_non_persistent_buffers_set"):
            mine[name] = theirs[name]

    def _give_back(self) -> nn.Module:
        """The original, with the mode, hooks and further attributes of now."""
        mine, original = vars(self), self.original
        vars(original).update({name: mine[name] for name in (*mine["_taken"], *self._settings) if name in mine})
        return original.train(self.training)

    def restore(self) -> nn.Module:
        """The original, with the Parameters, buffers, mode, device and dtype of now."""
        original = self._give_back()
        for kind in ("_parameters", "_buffers"):
            mine, theirs = vars(self)[kind], vars(original)[kind]
            for name in theirs:
                if name in mine:
                    theirs[name] = mine[name]
        like = _like(self)
        if like is not None:
            for child in original.children():  # e3nn's generated code, with its coefficients
                child.to(like.device, like.dtype)
        generated = getattr(self, "_generated", None) or {}  # a checkpoint may have brought other signs
        with no_grad():
            for name, buffer in original.named_buffers():
                if name in generated:
                    buffer.copy_(generated[name])
        return original


class FusedReplacement(Replacement):
    """Mixin: what TorchScript cannot hold, all but products, linear maps and harmonics."""

    def __prepare_scriptable__(self) -> nn.Module:  # the hook of torch.jit.script
        raise ConfigError(
            f"a model must hold no replacement but products, linear maps and harmonics to be scripted, got "
            f"{type(self).__name__}. Call deaccelerate, then accelerate with targets=('product', 'linear', "
            f"'harmonics'); or use torch.export."
        )


class AcceleratedTensorProduct(Replacement, TensorProduct):
    """Replacement of an ``e3nn.o3.TensorProduct`` or of a subclass with the same ``forward(x, y, weight)``."""


class AcceleratedTensorSquare(Replacement, TensorSquare):
    """Replacement of an ``e3nn.o3.TensorSquare``."""


class AcceleratedLinear(Replacement, Linear):
    """Replacement of an ``e3nn.o3.Linear``."""


class AcceleratedScatter(FusedReplacement):
    """Replacement of NequIP's ``TensorProductScatter``: gather, product and sum over edges in one call.

    Args:
        original: The module; its product is ``original.tp``.
        backend: Name of a backend, or None for the first that accepts.
    """

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        super().__init__()
        theirs: Any = original
        self.tp = AcceleratedTensorProduct.from_e3nn(theirs.tp, backend=backend)
        self.tp.stand_in_for(theirs.tp)

    def forward(
        self, x: Tensor, edge_attr: Tensor, edge_weight: Tensor | TabledWeights, edge_dst: Tensor, edge_src: Tensor
    ) -> Tensor:
        """``[N, in1.dim]``, ``[E, in2.dim]``, ``[E, weight_numel]`` and the ends ``[E]`` to ``[N, out.dim]``."""
        edges = stack([edge_src, edge_dst])
        if isinstance(edge_weight, TabledWeights):
            graph, plan = as_graph(edges, x.shape[0]), self.tp.plan
            return run_convolution(plan, x, edge_attr, edge_weight, graph, False, self.tp.backend, True)
        return tensor_product_conv(self.tp.plan, x, edge_attr, edge_weight, edges, backend=self.tp.backend)

    def restore(self) -> nn.Module:
        """The original; its product too has the Parameters and the place of now."""
        self.tp.restore()
        return self._give_back()


class AcceleratedConvolution(FusedReplacement, TensorProductConv):
    """Replacement of the ``conv_tp`` of a MACE interaction block, which passes it the edges once it is marked so."""

    def mark(self, parent: nn.Module) -> None:
        """See :class:`Replacement`."""
        vars(parent)["conv_fusion"] = "eqlayers"

    def unmark(self, parent: nn.Module) -> None:
        """See :class:`Replacement`."""
        vars(parent).pop("conv_fusion", None)


class AcceleratedMessages(FusedReplacement, TensorProduct):
    """Replacement of a product between a gather and a sum: on noted rows it is a convolution, see `notes`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module: notes stay notes, unless hooks look at them."""
        if has_hooks(self):
            return super().__call__(*args, **kwargs)
        return nn.Module.__call__(self, *args, **kwargs)

    def forward(self, x: Any, y: Any, weight: Any = None) -> Any:
        """``[E, in1.dim]`` or a note of them, ``[E, in2.dim]`` and weights to ``[E, out.dim]``, or a note of them."""
        y, weight = (value.numbers() if isinstance(value, Note) else value for value in (y, weight))
        if not isinstance(x, Note) or x.made:
            return self.rows(settled(x), y, weight)
        one_each = y.ndim == 2 and len(y) == len(x)
        if isinstance(weight, Tensor) and weight.ndim > 1:
            one_each = one_each and weight.ndim == 2 and len(weight) == len(x)
        fits = one_each and x.shape[1] == self.irreps_in1.dim and x.dtype == y.dtype
        fits = fits and x.followed == is_grad_enabled() and not is_autocast_enabled(x.device.type)
        return Messages(self, x, y, weight) if fits else self.rows(x.numbers(), y, weight)

    def rows(self, x: Tensor, y: Tensor, weight: Any) -> Tensor:
        """See :class:`.notes.Fused`."""
        found: Tensor = super().forward(x, y, weight.weights() if isinstance(weight, TabledWeights) else weight)
        return found

    def sums(self, x: Tensor, y: Tensor, weight: Any, src: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
        """See :class:`.notes.Fused`."""
        w, shared = weight, False
        if not isinstance(weight, TabledWeights):
            w = self._weights.read(weight, self.weight, self.internal_weights, self.shared_weights)
            shared = w.ndim == 1
        graph = as_graph(stack([src, dst]), x.shape[0], num_nodes)
        return run_convolution(self.plan, x, y, w, graph, shared, self.backend, True)

    def mark(self, parent: nn.Module) -> None:
        """See :class:`Replacement`; a parent that adds nothing up stays as it is."""
        note(parent)

    def unmark(self, parent: nn.Module) -> None:
        """See :class:`Replacement`."""
        unnote(parent)


def _like(module: nn.Module) -> Tensor | None:
    """A tensor with the module's device and dtype."""
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    floating = [t for t in tensors if t.is_floating_point()]
    return max(floating, key=lambda t: t.numel(), default=None)
