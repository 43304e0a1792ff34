"""Constants of grids on the sphere and on the rotations, in float64, under the names that e3nn has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ...core.dtypes import check_same_kind
from ...e3nn_compat.torchscript import is_tracing
from ...irreps.algebra import representation_matrix

Constants = Mapping[str, np.ndarray]


class Grid(torch.nn.Module):
    """Constants of a grid under e3nn's names: computed in float64, kept in the dtype of the layer, rounded once.

    A change of the dtype rounds them anew. Constants in a state dict may have been rounded before and are not read.
    """

    def __init__(self, source: Callable[..., Constants], *arguments: Any) -> None:
        super().__init__()
        self._source, self._arguments = source, arguments
        for name, value in self._constants().items():
            self.register_buffer(name, value.to(torch.get_default_dtype()))

    def _constants(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(value) for name, value in self._source(*self._arguments).items()}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        for name, value in self._constants().items():
            mine = self.get_buffer(name)
            if not mine.is_meta:
                setattr(self, name, value.to(mine))
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        exact = {prefix + name: value for name, value in self._constants().items()}
        same = {k: v for k, v in exact.items() if k in state_dict and state_dict[k].shape == v.shape}
        super()._load_from_state_dict({**state_dict, **same}, prefix, *rest)

    def extra_repr(self) -> str:
        """Sizes."""
        return ", ".join(f"{name} {list(value.shape)}" for name, value in self.named_buffers())


def constants_of(grid: torch.nn.Module, like: Tensor, *names: str) -> list[Tensor]:
    """Some constants of a grid, ours or e3nn's, in the dtype of features, which must be on their device."""
    if is_tracing():  # a conversion to the dtype of now would be part of the graph
        return [grid.get_buffer(name).type_as(like) for name in names]
    found = [grid.get_buffer(name).to(like.dtype) for name in names]
    check_same_kind(constants=found[0], features=like)
    return found


def _quadrature(points: int) -> np.ndarray:
    r"""Weights of the angles :math:`\beta_j = \pi (j + 1/2) / n` for the mean over a sphere; they sum to 1.

    Source:
        Kostelec and Rockmore 2008, J. Fourier Anal. Appl. 14, 145, equation 4.5.
    """
    odd = 2 * np.arange(points // 2) + 1
    betas = np.pi * (np.arange(points) + 0.5) / points
    weights: np.ndarray = np.sin(betas) * (np.sin(np.outer(betas, odd)) / odd).sum(1) * 2 / points
    return weights


def _legendre(lmax: int, betas: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """Associated Legendre functions of cos(beta), normalised on the sphere, all positive near beta = 0."""
    c, s = np.cos(betas), np.sin(betas)
    found = {(0, 0): np.full_like(betas, (4 * np.pi) ** -0.5)}
    for l in range(1, lmax + 1):
        found[l, l] = ((2 * l + 1) / (2 * l)) ** 0.5 * s * found[l - 1, l - 1]
        for m in range(l):
            below = found.get((l - 2, m), np.zeros_like(betas))
            factor = ((4 * l * l - 1) / (l * l - m * m)) ** 0.5
            ratio = (((l - 1) ** 2 - m * m) / (4 * (l - 1) ** 2 - 1)) ** 0.5 if below.any() else 0.0
            found[l, m] = factor * (c * found[l - 1, m] - ratio * below)
    return found


@lru_cache(maxsize=8)
def sphere_constants(lmax: int, nb: int, na: int, normalization: str, lmax_in: int | None) -> Constants:
    """The constants of ``o3.ToS2Grid``; with the highest degree of the signal, of its inverse ``o3.FromS2Grid``.

    ``shb [orders, beta, (lmax + 1)^2]`` takes coefficients to orders m, ``sha [alpha, orders]`` these to points.
    """
    betas, alphas = np.pi * (np.arange(nb) + 0.5) / nb, 2 * np.pi * np.arange(na) / na
    orders = np.arange(-lmax, lmax + 1)
    angles = np.outer(alphas, np.abs(orders))
    sha = np.where(orders < 0, np.sin(angles), np.cos(angles)) * np.where(orders == 0, 1.0, 2**0.5)
    shb = np.zeros((2 * lmax + 1, nb, (lmax + 1) ** 2))
    functions = _legendre(lmax, betas)
    for l in range(lmax + 1):
        size = {"component": (4 * np.pi / (2 * l + 1)) ** 0.5, "norm": (4 * np.pi) ** 0.5, "integral": 1.0}[
            normalization
        ]
        size *= ((lmax if lmax_in is None else lmax_in) + 1) ** -0.5
        size = 1.0 if normalization == "integral" else size
        weights = size if lmax_in is None else _quadrature(nb) * 4 * np.pi / na / size
        for m in range(-l, l + 1):
            shb[lmax + m, :, l * l + l + m] = functions[l, abs(m)] * weights
    return {"alphas": alphas, "betas": betas, "sha": sha, "shb": shb}


@lru_cache(maxsize=8)
def rotation_constants(lmax: int, resolution: int, aspect_ratio: float) -> Constants:
    r"""The constants of ``o3.SO3Grid``: Wigner matrices :math:`\sqrt{2l+1}\, D^l` on the grid, from three factors."""
    nb, na = 2 * resolution, round(2 * aspect_ratio * resolution)
    alphas, betas = 2 * np.pi * np.arange(na) / na, np.pi * (np.arange(nb) + 0.5) / nb
    irreps = o3.Irreps([(1, (l, 1)) for l in range(lmax + 1)])
    about_y = torch.stack([representation_matrix(irreps, _turn(angle, 2, 0)) for angle in alphas.tolist()])
    about_x = torch.stack([representation_matrix(irreps, _turn(angle, 1, 2)) for angle in betas.tolist()])
    blocks = []
    for part, (_, ir) in zip(irreps.slices(), irreps, strict=True):
        y, x = about_y[:, part, part], about_x[:, part, part]
        blocks.append(ir.dim**0.5 * torch.einsum("aij,bjk,ckl->abcil", y, x, y).flatten(-2))
    matrices = torch.cat(blocks, -1).numpy()
    return {"D": matrices, "qw": _quadrature(nb) / na**2, "alpha": alphas, "beta": betas, "gamma": alphas}


def _turn(angle: float, first: int, second: int) -> np.ndarray:
    """Rotation that turns one axis towards another."""
    matrix = np.eye(3)
    c, s = np.cos(angle), np.sin(angle)
    matrix[first, first] = matrix[second, second] = c
    matrix[second, first], matrix[first, second] = s, -s
    return matrix
