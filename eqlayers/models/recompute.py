"""Less memory in training: what a block of a network computes is forgotten, and computed again for its derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

from ..core.checks import check_module
from ..core.torch_internals import tree_flatten, tree_unflatten

Tensors = tuple[Tensor, ...]


@contextmanager
def recomputed(network: torch.nn.Module) -> Iterator[None]:
    """Calls of a network in this block keep the inputs of its parts and compute the rest again for derivatives.

    The parts are its children, and each entry of its lists of modules. Derivatives of every order are the same, to
    the rounding of their sums. It is for training on forces as well, which ``torch.utils.checkpoint`` is not: a loss of
    forces differentiates a backward pass, and that one would keep again what the forward pass forgot. Here each part of
    the backward pass is forgotten, too, and computed again. A step takes about twice the time.

    Args:
        network: Its calls are changed until the block ends; derivatives may be taken later.

    Raises:
        ConfigError: It is no module.

    Source:
        Chen, Xu, Zhang, Guestrin 2016, arXiv:1604.06174, for the idea.

    Example:
        >>> from eqlayers.models import NequIP, Potential, Structures
        >>> potential = Potential(NequIP([1], hidden="4x0e + 4x1o", lmax=1, layers=2), species=[1])
        >>> pair = Structures(torch.tensor([1, 1]), torch.randn(2, 3), torch.tensor([[0, 1], [1, 0]]))
        >>> with recomputed(potential.network):
        ...     forces = potential(pair)["forces"]
        >>> forces.square().sum().backward()
        >>> torch.allclose(forces, potential(pair)["forces"])
        True
    """
    parts = list(_parts(check_module("network", network)))
    before = [part.__dict__.get("forward") for part in parts]
    for part in parts:
        part.forward = functools.partial(_call, part, part.forward)
    try:
        yield
    finally:
        for part, forward in zip(parts, before, strict=True):
            del part.forward
            if forward is not None:
                part.forward = forward


def _parts(network: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in network.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from child.children()
        else:
            yield child


def _call(part: torch.nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of ``forward``, from a node that keeps only tensors of the arguments and the parameters."""
    leaves, structure = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    parameters = tuple(parameter for parameter in part.parameters() if parameter.requires_grad)
    operands = [leaves[place] for place in places]
    if not torch.is_grad_enabled() or not (parameters or any(tensor.requires_grad for tensor in operands)):
        return forward(*args, **kwargs)
    constants = [None if place in places else leaf for place, leaf in enumerate(leaves)]  # given again with each call
    state = torch.get_rng_state(), get_device_states(*operands)
    returned: list[Any] = []

    def run(*tensors: Tensor) -> Tensors:
        again = list(constants)
        for place, tensor in zip(places, tensors[len(parameters) :], strict=True):
            again[place] = tensor
        args, kwargs = tree_unflatten(again, structure)
        if returned:  # the same random numbers
            with torch.random.fork_rng(state[1][0]):
                torch.set_rng_state(state[0])
                set_device_states(*state[1])
                result = forward(*args, **kwargs)
        else:
            result = forward(*args, **kwargs)
        flat, shape = tree_flatten(result)
        returned[:] = [shape, [None if isinstance(value, Tensor) else value for value in flat]]
        return tuple(value for value in flat if isinstance(value, Tensor))

    tensors = iter(_Recomputed.apply(run, parameters, *parameters, *operands))
    shape, others = returned
    return tree_unflatten([next(tensors) if value is None else value for value in others], shape)


class _Recomputed(torch.autograd.Function):
    """A function of parameters and other tensors, and its derivative as such a function; so all orders are served."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensors], parameters: Tensors, *tensors: Tensor) -> Tensors:
        ctx.run, ctx.parameters = run, parameters
        ctx.save_for_backward(*tensors)
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        tensors = ctx.saved_tensors
        needed = [place for place, needs in enumerate(ctx.needs_input_grad[2:]) if needs]
        derivative = _derivative(ctx.run, ctx.parameters, len(tensors), needed)
        if torch.is_grad_enabled():
            gradients = _Recomputed.apply(derivative, ctx.parameters, *tensors, *slopes)
        else:
            gradients = derivative(*tensors, *slopes)
        by_place = dict(zip(needed, gradients, strict=True))
        return None, None, *(by_place.get(place) for place in range(len(tensors)))


def _derivative(
    run: Callable[..., Tensors], parameters: Tensors, count: int, needed: Sequence[int]
) -> Callable[..., Tensors]:
    """Gradients by the tensors in the places ``needed``, as a function of the tensors and the slopes of ``run``."""

    def derivative(*arguments: Tensor) -> Tensors:
        follow = torch.is_grad_enabled()  # this function is differentiated itself
        with torch.enable_grad():
            operands = list(parameters)  # which `run` uses by itself
            for place, tensor in enumerate(arguments[len(operands) : count], start=len(operands)):
                kept = place not in needed or (follow and tensor.requires_grad)
                operands.append(tensor if kept else tensor.detach().requires_grad_())
            pairs = [pair for pair in zip(run(*operands), arguments[count:], strict=True) if pair[0].requires_grad]
            wanted = [operands[place] for place in needed]
            if not pairs:
                return tuple(torch.zeros_like(tensor) for tensor in wanted)
            values, slopes = zip(*pairs, strict=True)
            return torch.autograd.grad(values, wanted, slopes, create_graph=follow, materialize_grads=True)

    return derivative
