"""Activation checkpointing that also serves losses of forces: intermediate tensors are recomputed for derivatives."""

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
    """Context manager: calls of a network store only inputs of its submodules and recompute the rest for derivatives.

    Submodules are its children, and each entry of its module lists. Derivatives of every order are equal up to the
    rounding of their sums. A loss of forces differentiates a backward pass, whose intermediate tensors
    ``torch.utils.checkpoint`` would store; here they are recomputed, too. A step takes about
    twice the time.

    Args:
        network: The module whose submodules are wrapped until the block ends; derivatives may be taken later.

    Raises:
        ConfigError: ``network`` is no module.

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
    """Yield the children of a network, with the entries of module lists and dicts in place of these."""
    for child in network.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            yield from child.children()
        else:
            yield child


def _call(part: torch.nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``forward`` as one autograd node that stores only floating-point arguments and parameters."""
    leaves, structure = tree_flatten((args, kwargs))
    indices = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    parameters = tuple(parameter for parameter in part.parameters() if parameter.requires_grad)
    operands = [leaves[index] for index in indices]
    if not torch.is_grad_enabled() or not (parameters or any(tensor.requires_grad for tensor in operands)):
        return forward(*args, **kwargs)
    constants = [None if index in indices else leaf for index, leaf in enumerate(leaves)]  # passed again by each call
    state = torch.get_rng_state(), get_device_states(*operands)
    returned: list[Any] = []

    def run(*tensors: Tensor) -> Tensors:
        filled = list(constants)
        for index, tensor in zip(indices, tensors[len(parameters) :], strict=True):
            filled[index] = tensor
        args, kwargs = tree_unflatten(filled, structure)
        with torch.random.fork_rng(state[1][0], enabled=bool(returned)):
            if returned:  # a repeated call draws the same random numbers
                torch.set_rng_state(state[0])
                set_device_states(*state[1])
            result = forward(*args, **kwargs)
        flat, shape = tree_flatten(result)
        # the class in place of a tensor, which would live as long as the graph
        returned[:] = [shape, [Tensor if isinstance(value, Tensor) else value for value in flat]]
        return tuple(value for value in flat if isinstance(value, Tensor))

    tensors = iter(_Recomputed.apply(run, parameters, *parameters, *operands))
    shape, leaves = returned
    return tree_unflatten([next(tensors) if value is Tensor else value for value in leaves], shape)


class _Recomputed(torch.autograd.Function):
    """A function without stored intermediate tensors; its backward is another such function, so all orders work."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensors], parameters: Tensors, *tensors: Tensor) -> Tensors:
        ctx.run, ctx.parameters = run, parameters
        ctx.save_for_backward(*tensors)
        return run(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        tensors = ctx.saved_tensors
        needed = [index for index, needs in enumerate(ctx.needs_input_grad[2:]) if needs]
        derivative = _derivative(ctx.run, ctx.parameters, len(tensors), needed)
        if torch.is_grad_enabled():
            gradients = _Recomputed.apply(derivative, ctx.parameters, *tensors, *cotangents)
        else:
            gradients = derivative(*tensors, *cotangents)
        by_index = dict(zip(needed, gradients, strict=True))
        return None, None, *(by_index.get(index) for index in range(len(tensors)))


def _derivative(
    run: Callable[..., Tensors], parameters: Tensors, count: int, needed: Sequence[int]
) -> Callable[..., Tensors]:
    """Vector-Jacobian product of ``run`` by arguments ``needed``: a function of its arguments and cotangents."""

    def derivative(*arguments: Tensor) -> Tensors:
        follow = torch.is_grad_enabled()  # this function is differentiated itself
        with torch.enable_grad():
            operands = list(parameters)  # `run` reads the parameters themselves
            for index, tensor in enumerate(arguments[len(operands) : count], start=len(operands)):
                unchanged = index not in needed or (follow and tensor.requires_grad)
                operands.append(tensor if unchanged else tensor.detach().requires_grad_())
            pairs = [pair for pair in zip(run(*operands), arguments[count:], strict=True) if pair[0].requires_grad]
            inputs = [operands[index] for index in needed]
            if not pairs:
                return tuple(torch.zeros_like(tensor) for tensor in inputs)
            values, cotangents = zip(*pairs, strict=True)
            return torch.autograd.grad(values, inputs, cotangents, create_graph=follow, materialize_grads=True)

    return derivative
