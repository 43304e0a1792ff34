"""Functions of signals on the sphere and on the rotations, point by point on grids, with e3nn's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from e3nn import o3
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_integer, check_number, got
from ...core.dtypes import check_same_dtype
from ...core.errors import ConfigError, IrrepsError
from ...e3nn_compat.torchscript import checked, is_tracing
from ...irreps.algebra import as_irreps, representation_matrix
from ...irreps.layout import FlatLayout
from ..base.module import EquivariantModule
from ..rotation.module import WignerD
from .activation import NormalizedFunction

Constants = Mapping[str, np.ndarray]


class Grid(torch.nn.Module):
    """Constants of a grid under e3nn's names: computed in float64, and rounded once to the dtype of the layer.

    A change of dtype rounds the float64 values again. Constants in a state dict, perhaps rounded twice, are not read.
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
    """The named constants of a grid, of eqlayers or e3nn, in the dtype of ``like``, which must be on their device."""
    if is_tracing():  # `to` would fix the dtype of the example in the graph
        return [getattr(grid, name).type_as(like) for name in names]
    constants = [getattr(grid, name).to(like.dtype) for name in names]
    check_same_dtype(constants=constants[0], features=like)
    return constants


def _quadrature(points: int) -> np.ndarray:
    r"""Weights of the angles :math:`\beta_j = \pi (j + 1/2) / n` for the mean over a sphere; they sum to 1.

    Source:
        Kostelec and Rockmore 2008, J. Fourier Anal. Appl. 14, 145, equation 4.5.
    """
    odd = 2 * np.arange(points // 2) + 1
    betas = np.pi * (np.arange(points) + 0.5) / points
    return np.sin(betas) * (np.sin(np.outer(betas, odd)) / odd).sum(1) * 2 / points


def _legendre(lmax: int, betas: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """Associated Legendre functions of cos(beta), normalised on the sphere, all positive near beta = 0."""
    c, s = np.cos(betas), np.sin(betas)
    functions = {(0, 0): np.full_like(betas, (4 * np.pi) ** -0.5)}
    for l in range(1, lmax + 1):
        functions[l, l] = ((2 * l + 1) / (2 * l)) ** 0.5 * s * functions[l - 1, l - 1]
        for m in range(l):
            below = functions.get((l - 2, m), np.zeros_like(betas))
            factor = ((4 * l * l - 1) / (l * l - m * m)) ** 0.5
            ratio = (((l - 1) ** 2 - m * m) / (4 * (l - 1) ** 2 - 1)) ** 0.5 if below.any() else 0.0
            functions[l, m] = factor * (c * functions[l - 1, m] - ratio * below)
    return functions


@lru_cache(maxsize=8)
def sphere_constants(lmax: int, nb: int, na: int, normalization: str, lmax_in: int | None) -> Constants:
    """The constants of ``o3.ToS2Grid``, or with ``lmax_in`` the constants of its inverse ``o3.FromS2Grid``.

    ``shb [orders, beta, (lmax + 1)^2]`` takes coefficients to orders m, ``sha [alpha, orders]`` these to points.
    """
    betas, alphas = np.pi * (np.arange(nb) + 0.5) / nb, 2 * np.pi * np.arange(na) / na
    orders = np.arange(-lmax, lmax + 1)
    angles = np.outer(alphas, np.abs(orders))
    sha = np.where(orders < 0, np.sin(angles), np.cos(angles)) * np.where(orders == 0, 1.0, 2**0.5)
    shb = np.zeros((2 * lmax + 1, nb, (lmax + 1) ** 2))
    functions = _legendre(lmax, betas)
    for l in range(lmax + 1):
        size = {"component": (4 * np.pi / (2 * l + 1)) ** 0.5, "norm": (4 * np.pi) ** 0.5}.get(normalization)
        size = 1.0 if size is None else size * ((lmax if lmax_in is None else lmax_in) + 1) ** -0.5
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
    about_y = torch.stack([representation_matrix(irreps, _axis_rotation(angle, 2, 0)) for angle in alphas.tolist()])
    about_x = torch.stack([representation_matrix(irreps, _axis_rotation(angle, 1, 2)) for angle in betas.tolist()])
    blocks = []
    for part, (_, ir) in zip(irreps.slices(), irreps, strict=True):
        y, x = about_y[:, part, part], about_x[:, part, part]
        blocks.append(ir.dim**0.5 * torch.einsum("aij,bjk,ckl->abcil", y, x, y).flatten(-2))
    matrices = torch.cat(blocks, -1).numpy()
    return {"D": matrices, "qw": _quadrature(nb) / na**2, "alpha": alphas, "beta": betas, "gamma": alphas}


def _axis_rotation(angle: float, first: int, second: int) -> np.ndarray:
    """The rotation matrix by an angle from axis ``first`` towards axis ``second``."""
    matrix = np.eye(3)
    c, s = np.cos(angle), np.sin(angle)
    matrix[first, first] = matrix[second, second] = c
    matrix[second, first], matrix[first, second] = s, -s
    return matrix


@compile_mode("script")  # for e3nn.util.jit
class S2Activation(EquivariantModule):
    r"""A function of the signal on the sphere, point by point; a drop-in for ``e3nn.nn.S2Activation``.

    .. math:: A^l \mapsto \int \phi\Big(\sum_k A^k \cdot Y^k(x)\Big)\, Y^l(x)\, dx

    The integral is a sum over a grid, exact without the function. The function adds higher degrees, which
    alias on the grid, so the layer is equivariant up to an error that falls with ``res``.

    Args:
        irreps: One irrep of each degree from 0, of parity :math:`p\, q^l`: a signal on the sphere.
        act: The function, scaled as e3nn scales it; odd or even for signals with p = -1.
        res: Points in beta, even and at least 2 lmax + 2, with one point less in alpha; or a pair of both numbers.
        normalization: 'component', 'norm' or 'integral'.
        lmax_out: Highest degree of the output; None for the input's.
        random_rot: Whether every call rotates the grid at random, by torch's generator; up to degree 12.

    Attributes:
        irreps_in, irreps_out: Of input and output.
        to_s2, from_s2: Constants of the grid, with the keys of e3nn's state dict.

    Raises:
        IrrepsError, ConfigError: The irreps are no signal on the sphere, or an option is out of range.

    Source:
        Cohen et al. 2018, arXiv:1801.10130; e3nn, arXiv:2207.09453.

    Example:
        >>> act = S2Activation("0e + 1o + 2e", torch.tanh, 10)
        >>> act(torch.randn(5, 9)).shape
        torch.Size([5, 9])
    """

    _torchscript = "traced"

    def __init__(
        self,
        irreps: Any,
        act: Callable[[Tensor], Tensor],
        res: int | tuple[int, int],
        normalization: str = "component",
        lmax_out: int | None = None,
        random_rot: bool = False,
    ) -> None:
        super().__init__()
        self.irreps_in = as_irreps(irreps).simplify()
        p, q = _signal(self.irreps_in)
        lmax = self.irreps_in.lmax
        lmax_out = lmax if lmax_out is None else check_integer("lmax_out", lmax_out, 0)
        normalization = check_choice("normalization", normalization, ("component", "norm", "integral"))
        points = _points(res, lmax, lmax_out)
        self.random_rot = check_flag("random_rot", random_rot)
        self.act = NormalizedFunction(act)
        if p == -1:
            p = self.act.parity(1e-10, relative=True)
            if p == 0:
                raise ConfigError(
                    f"act must be even or odd for a signal of parity -1, got {self.act.extra_repr()}. Use torch.tanh."
                )
        self.irreps_out = o3.Irreps([(1, (l, p * q**l)) for l in range(lmax_out + 1)])
        self.to_s2 = Grid(sphere_constants, lmax, *points, normalization, None)
        self.from_s2 = Grid(sphere_constants, lmax_out, *points, normalization, lmax)
        self._flat = FlatLayout(self.irreps_in, "mul_ir")
        self._set_rotations()

    def _set_rotations(self) -> None:
        """Make the matrices that rotate the grid, also if ``random_rot`` was set after construction."""
        if self.random_rot and "rotate_in" not in self._modules:
            self.rotate_in, self.rotate_out = WignerD(self.irreps_in, "angles"), WignerD(self.irreps_out, "angles")

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError for other features."""
        features = checked(self._flat, "features", features)
        self._set_rotations()
        angles = self._angles(features) if self.random_rot else None
        if angles is not None:
            features = features @ self.rotate_in(angles).type_as(features).T
        sha, shb = constants_of(self.to_s2, features, "sha", "shb")
        orders, betas, _ = shb.shape
        # matrix products in place of e3nn's Fourier transforms, which are slower at the sizes of grids
        by_order = (features @ shb.flatten(0, 1).T).unflatten(-1, (orders, betas)).transpose(-1, -2)
        values = self.act.f(by_order @ sha.T)
        sha, shb = constants_of(self.from_s2, values, "sha", "shb")
        by_order = (values @ sha).transpose(-1, -2).flatten(-2)
        out: Tensor = (by_order @ shb.flatten(0, 1)) * self.act.cst
        return out if angles is None else out @ self.rotate_out(angles).type_as(out)

    @staticmethod
    def _angles(features: Tensor) -> Tensor:
        """Angles of a random rotation, as `o3.rand_angles` draws them, which torch.func cannot trace; float64."""
        options: dict[str, Any] = {"dtype": features.dtype, "device": features.device}
        alpha, gamma = (2 * math.pi * torch.rand(2, **options)).double()
        beta = torch.rand((), **options).double().mul(2).sub(1).acos()
        return torch.stack([alpha, beta, gamma])

    def extra_repr(self) -> str:
        """Irreps and points."""
        points = [len(self.to_s2.get_buffer(name)) for name in ("betas", "alphas")]
        return f"{self.irreps_in} -> {self.irreps_out}, res={points}{', random_rot' if self.random_rot else ''}"


def _signal(irreps: o3.Irreps) -> tuple[int, int]:
    """The parities of a signal's values and of its argument."""
    if len(irreps) and all(mul == 1 for mul, _ in irreps) and irreps.ls == list(range(len(irreps))):
        p = irreps[0].ir.p
        for q in (1, -1):
            if all(ir.p == p * q**ir.l for _, ir in irreps):
                return p, q
    raise IrrepsError(
        f"irreps must be one of each degree from 0, all of one parity or of alternating ones, got '{irreps}'. "
        f"Use irreps such as '0e + 1o + 2e'."
    )


def _points(res: Any, lmax: int, lmax_out: int) -> tuple[int, int]:
    """Points of the grid in beta and in alpha."""
    least = 2 * max(lmax, lmax_out) + 2
    fix = f"Use an even number of at least {least}."
    if isinstance(res, (tuple, list)):
        if len(res) != 2:
            raise ConfigError(f"res must be a number of points, or those in beta and in alpha, got {got(res)}. {fix}")
        beta, alpha = check_integer("res", res[0], least, fix=fix), check_integer("res", res[1], 1)
    else:
        beta = check_integer("res", res, least, fix=fix)
        alpha = max(2 * lmax + 1, beta - 1)
    if beta % 2:
        raise ConfigError(f"res must be even, got {beta}. {fix}")
    return beta, alpha


@compile_mode("script")  # for e3nn.util.jit
class SO3Activation(EquivariantModule):
    r"""A function of the signal on the rotations, point by point; a drop-in for ``e3nn.nn.SO3Activation``.

    A signal is the sum of Wigner matrices times coefficients: 2l + 1 copies of each degree l. See
    :class:`S2Activation` for the error of the grid.

    Args:
        lmax_in, lmax_out: Highest degrees of input and output.
        act: The function, scaled as e3nn scales it.
        resolution: Of the grid, which has ``2 resolution`` points in beta.
        normalization: 'component'.
        aspect_ratio: ``2 aspect_ratio resolution`` are the points in alpha and in gamma.

    Attributes:
        irreps_in, irreps_out: ``1x0e + 3x1e + 5x2e + ...``.
        grid_in, grid_out: Constants of the grid, with the keys of e3nn's state dict.

    Raises:
        ConfigError: An option.

    Source:
        Cohen et al. 2018, arXiv:1801.10130; e3nn, arXiv:2207.09453.

    Example:
        >>> act = SO3Activation(1, 1, torch.tanh, 2)
        >>> act(torch.randn(5, 10)).shape
        torch.Size([5, 10])
    """

    _torchscript = "traced"

    def __init__(
        self,
        lmax_in: int,
        lmax_out: int,
        act: Callable[[Tensor], Tensor],
        resolution: int,
        *,
        normalization: str = "component",
        aspect_ratio: float = 2,
    ) -> None:
        super().__init__()
        check_choice("normalization", normalization, ("component",))
        resolution = check_integer("resolution", resolution, 1)
        ratio = check_number("aspect_ratio", aspect_ratio, at_least=0.5, fix="Use 2.")
        self._set_degrees(check_integer("lmax_in", lmax_in, 0), check_integer("lmax_out", lmax_out, 0))
        self.grid_in = Grid(rotation_constants, self.lmax_in, resolution, ratio)
        self.grid_out = Grid(rotation_constants, self.lmax_out, resolution, ratio)
        self.act = NormalizedFunction(act)
        self.resolution = resolution

    def _set_degrees(self, lmax_in: int, lmax_out: int) -> None:
        self.lmax_in, self.lmax_out = lmax_in, lmax_out
        self.irreps_in, self.irreps_out = (
            o3.Irreps([(2 * l + 1, (l, 1)) for l in range(lmax + 1)]) for lmax in (lmax_in, lmax_out)
        )
        self._dims = self.irreps_in.dim, self.irreps_out.dim  # numbers: sizes are tensors of float32 in a traced power
        self._flat = FlatLayout(self.irreps_in, "mul_ir")

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError for other features."""
        features = checked(self._flat, "features", features)
        (to_grid,) = constants_of(self.grid_in, features, "D")
        values = self.act.f((features * self._dims[0] ** -0.5) @ to_grid.flatten(0, 2).T)
        from_grid, weights = constants_of(self.grid_out, values, "D", "qw")
        out: Tensor = values @ (from_grid * weights[:, None, None]).flatten(0, 2)
        return out * (self.act.cst * self._dims[1] ** 0.5)

    def extra_repr(self) -> str:
        """Degrees and resolution."""
        return f"lmax {self.lmax_in} -> {self.lmax_out}, resolution={self.resolution}"
