"""SOAP of one matrix in plain loops over steps: the definition that the optimizer is compared with."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from eqlayers.optim.stack import first_basis, next_basis


def soap_of_matrix(
    gradients: Iterable[Tensor],
    betas: tuple[float, float] = (0.95, 0.98),
    gram_beta: float = 0.95,
    gram_every: int = 2,
    precondition_every: int = 20,
    eps: float = 1e-8,
) -> Iterator[Tensor]:
    """The updates of a matrix ``[rows, columns]`` for its gradients; the optimizer subtracts each times ``lr``."""
    decay = gram_beta**gram_every
    mean = square = None  # of Adam, the first in the basis of the matrix itself
    for step, gradient in enumerate(gradients):
        if mean is None or square is None:
            mean, square = torch.zeros_like(gradient), torch.zeros_like(gradient)
            left, right = ((1 - decay) * g for g in (gradient @ gradient.T, gradient.T @ gradient))
            basis = [first_basis(gram) for gram in (left, right)]
            yield torch.zeros_like(gradient)
            continue
        rotated = basis[0].T @ gradient @ basis[1]
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * rotated**2
        first = basis[0].T @ mean @ basis[1] / (1 - betas[0] ** step)
        second = square / (1 - betas[1] ** step)
        yield basis[0] @ (first / (second.sqrt() + eps)) @ basis[1].T
        if step % gram_every == 0:
            left = decay * left + (1 - decay) * gradient @ gradient.T
            right = decay * right + (1 - decay) * gradient.T @ gradient
        if step % precondition_every == 0:
            for axis, gram in enumerate((left, right)):
                basis[axis], order = next_basis(gram, basis[axis])
                square = square.index_select(axis, order)
