"""Contractions of Allegro, of the features of an edge and of its atom, as one tensor product."""

from __future__ import annotations

import math
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...core.forms.request import Request
from ...irreps.algebra import as_irreps, wigner_3j
from ...irreps.instructions import Instruction
from ...layers.base.module import EquivariantModule
from ...layers.tensor_product.lower import ProductPlan
from ...layers.tensor_product.run import run_product
from ..replacement import NODES, FusedReplacement, Operands, Probe, Rule, call_with, draw, part_if
from ..structure import base_of, code_of, is_theirs, refuse_changed

_ATTRIBUTES = ("irreps_in1", "irreps_in2", "irreps_out", "mul", "instructions", "w3j", "weights", "irrep_normalization")
#: Largest error of coefficients, relative to the largest one: more than float32 rounds.
_TOLERANCE = 1e-5


def is_contracter(module: Any) -> bool:
    """Whether a module is of Allegro's class ``Contracter``, or of a class derived from it."""
    if not is_theirs(module, "Contracter", _ATTRIBUTES):
        return False
    base: Any = base_of(module, "Contracter")
    code = code_of(base.forward)
    return code is not None and code.co_varnames[: code.co_argcount] == ("self", "x1", "x2", "idxs")


def _paths_of(irreps: tuple[Irreps, Irreps, Irreps], instructions: Any) -> list[tuple[int, int, int]]:
    """Paths ``(i_in1, i_in2, i_out)`` of instructions; for None all paths that selection rules allow, as in Allegro."""
    if instructions is not None:
        return [(int(i), int(j), int(k)) for i, j, k in instructions]
    groups = [list(enumerate(part)) for part in irreps]
    return [(i, j, k) for k, (_, c) in groups[2] for i, (_, a) in groups[0] for j, (_, b) in groups[1] if c in a * b]


def _coefficients(
    w3j: Tensor, irreps: tuple[Irreps, Irreps, Irreps], paths: list[tuple[int, int, int]], normalization: str | None
) -> tuple[list[float], Tensor]:
    """The factor of the Wigner 3j symbols of each path in Allegro's buffer, and the buffer without rounding.

    The buffer is ``[P, i, j, k]``; without P if there is one path, without j if all entries have i = j. The
    normalization is 'component' or 'norm'.
    """
    dims = [part.dim for part in irreps]
    stored = w3j.detach().to("cpu", torch.float64)
    shape = list(stored.shape)
    if len(paths) == 1:
        stored = stored.unsqueeze(0)
    if is_diagonal := stored.ndim == 3:
        stored = torch.diag_embed(stored.transpose(1, 2)).permute(0, 2, 3, 1)
    if list(stored.shape) != [len(paths), *dims]:
        raise ConfigError(
            f"w3j must be for {len(paths)} paths of {' x '.join(map(str, dims))} components, got {shape}. Build the "
            f"module anew."
        )
    slices = [part.slices() for part in irreps]
    factors, exact = [], torch.zeros_like(stored)
    for number, path in enumerate(paths):
        ls = [part[index].ir.l for part, index in zip(irreps, path, strict=True)]
        symbols = torch.tensor(wigner_3j(*ls))
        where = tuple(part[index] for part, index in zip(slices, path, strict=True))
        size = math.sqrt(2 * ls[2] + 1) if normalization == "component" else 1.0
        factor = math.copysign(size, float((stored[number][where] * symbols).sum()))
        exact[number][where] = factor * symbols
        error = float((stored[number] - exact[number]).abs().max() / exact[number].abs().max())
        if not error <= _TOLERANCE:
            raise ConfigError(
                f"w3j must hold Wigner 3j symbols times {size:.6g}, got others for path {number}, {path}. Build the "
                f"module anew."
            )
        factors.append(factor)
    if is_diagonal:
        exact = exact.diagonal(dim1=1, dim2=2).transpose(1, 2)
    return factors, exact.reshape(shape)


class AcceleratedContracter(FusedReplacement, EquivariantModule):
    """Replacement of Allegro's ``Contracter``: outer products of both features are not stored.

    Channels are the last axis in the kernel and the first in Allegro's features ``[E, U, dim]``, so inputs and output
    are transposed.
    """

    weights: nn.Parameter
    w3j: Tensor

    def __init__(self, original: Any, backend: str | None = None) -> None:
        super().__init__("ir_mul", backend)
        self.mul, self.path_channel_coupling = original.mul, original.path_channel_coupling
        irreps = (as_irreps(one) for one in (original.irreps_in1, original.irreps_in2, original.irreps_out))
        self.irreps_in1, self.irreps_in2, self.irreps_out = irreps
        self.irrep_normalization = original.irrep_normalization
        self._dims = tuple(part.dim for part in self._irreps)  # torch.compile looks at irreps with alarm
        self._paths = _paths_of(self._irreps, original.instructions)
        self.num_paths = len(self._paths)
        self._parameters.update(original._parameters)
        self._buffers.update(original._buffers)
        self._read(self.w3j)
        self.train(original.training)

    @property
    def _irreps(self) -> tuple[Irreps, Irreps, Irreps]:
        return self.irreps_in1, self.irreps_in2, self.irreps_out

    def _read(self, w3j: Tensor) -> None:
        """Make the plan of the product, with the signs of the coefficients in ``w3j``."""
        factors, _ = _coefficients(w3j, self._irreps, self._paths, self.irrep_normalization)
        paths = zip(self._paths, factors, strict=True)
        instructions = [Instruction(*path, "uuu", True, factor, (self.mul,)) for path, factor in paths]
        self._note_change(vars(self).get("instructions", instructions) != instructions)
        self.instructions = instructions
        wide = [Irreps([(self.mul, ir) for _, ir in part]) for part in self._irreps]
        self.plan = ProductPlan(wide, self.instructions, "ir_mul")

    def whole_call(self, dtype: torch.dtype, device: torch.device) -> tuple[str, Request]:
        """Name and request of the one product of a call; see :class:`.EquivariantModule`."""
        return f"all {self.num_paths} paths", self.plan.form.request(dtype, device)

    def forward(self, x1: Tensor, x2: Tensor, idxs: Tensor) -> Tensor:
        """Edges ``[E, U, in1.dim]``, atoms ``[N, U, in2.dim]`` and atoms of edges ``[E]`` to ``[E, U, out.dim]``."""
        pairs = ((x1, self._dims[0]), (x2, self._dims[1]))
        x, y = (t.reshape(len(t), self.mul, dim).transpose(1, 2).reshape(len(t), dim * self.mul) for t, dim in pairs)
        by_channel = self.weights.reshape(-1, self.num_paths).expand(self.mul, -1)
        w = by_channel.t().reshape(-1)
        z = run_product(self.plan, x, y.index_select(0, idxs), w, True, self.backend)
        return z.reshape(len(z), self._dims[2], self.mul).transpose(1, 2)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a state dict, and use the signs of its coefficients, which may come from another version of e3nn."""
        w3j = state_dict.get(f"{prefix}w3j")
        if w3j is not None and not w3j.is_meta and w3j.shape == self.w3j.shape:
            try:
                self._read(w3j)
            except ConfigError as error:
                args[-1].append(f"{prefix}w3j: {error}")  # torch raises these together
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Irreps, channels, paths and backend."""
        ins = f"{self.irreps_in1} x {self.irreps_in2} -> {self.irreps_out}"
        return f"{ins} | {self.mul} channels | {self.num_paths} paths | backend {self.backend or 'auto'}"

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Random operands; rows are edges between four atoms."""
        irreps = (self.irreps_in1, self.irreps_in2)
        lead = {"x": rows, "y": NODES}
        operands = {name: draw(name, lead[name], self.mul, part.dim) for name, part in zip("xy", irreps, strict=True)}
        operands["weights"] = draw("weights", *original.weights.shape)
        atoms = torch.arange(rows, device="cpu") % NODES

        def run(module: nn.Module, o: Operands) -> Tensor:
            return call_with(module, {"weights": o["weights"]}, o["x"], o["y"], atoms.to(o["x"].device))

        return [Probe(operands, run)]

    def exact_constants(self, original: Any) -> Operands:
        """See :class:`Replacement`."""
        return {"w3j": _coefficients(original.w3j, self._irreps, self._paths, self.irrep_normalization)[1]}


def _refuse(module: nn.Module) -> str | None:
    return refuse_changed(module, "Contracter", ("weights", "w3j"), (), "Allegro's", " contraction")


RULES = (Rule("contraction", part_if(is_contracter), _refuse, AcceleratedContracter.of),)
