"""Symmetric contractions of MACE."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...layers.base.module import EquivariantModule
from ...layers.contraction.basis import dense, from_dense
from ...layers.contraction.lower import MOST, Mixing, mixing, polynomials_of, read_tensor
from ...nn import SymmetricContraction
from ..replacement import FusedReplacement, Operands, Probe, Rule, call_with, draw, part_if
from ..structure import base_of, child_of, hooks_inside, is_theirs, refuse_changed

#: Submodules of one irrep of MACE's contraction beside its weights: code, without numbers of its own.
_CODE = {"contractions_weighting", "contractions_features", "graph_opt_main"}
#: Relative errors of coupling tensors above it are the rounding of a shorter dtype than float64.
EXACT = 1e-12


def is_contraction(module: Any) -> bool:
    """Whether a module is of MACE's class ``SymmetricContraction``, or of a class derived from it."""
    attributes, uses = ("irreps_in", "irreps_out", "contractions"), ("contractions", "cat")
    return is_theirs(module, "SymmetricContraction", attributes, uses) and len(module.contractions) > 0


#: Whether a module is a symmetric contraction of MACE or of another package, such as cuequivariance.
_is_any = partial(is_theirs, name="SymmetricContraction", attributes=("irreps_in", "irreps_out"))


def _refuse(module: nn.Module) -> str | None:
    """Why a symmetric contraction cannot be replaced, or None."""
    if not is_contraction(module):
        return f"belongs to {type(module).__module__.partition('.')[0]}, not to MACE, and has weights of its own kind"
    needed, whose = ("contractions",), "MACE's"
    if (reason := refuse_changed(module, "SymmetricContraction", needed, (), whose, " contraction")) is not None:
        return reason
    parts: Any = module.contractions
    correlations = {getattr(part, "correlation", None) for part in parts}
    if len(correlations) != 1 or None in correlations:
        return f"does not hold what MACE's contraction holds: correlations {sorted(map(str, correlations))}"
    for k, part in enumerate(parts):
        if (reason := _refuse_part(part)) is not None:
            return f"holds contractions.{k}, which {reason}"
    return "has hooks on its parts" if hooks_inside(module) else None


def _refuse_part(part: Any) -> str | None:
    """Why a submodule, which computes one irrep of the result, is not MACE's ``Contraction``, or None."""
    if base_of(part, "Contraction") is None:
        return f"is a {type(part).__name__}, not MACE's Contraction"
    degrees = range(1, part.correlation + 1)
    needed = {"weights", "weights_max", *(f"U_matrix_{degree}" for degree in degrees)}
    flags = {f"weights_{'max' if degree == part.correlation else degree - 1}_zeroed" for degree in degrees}
    if (reason := refuse_changed(part, "Contraction", needed, flags | _CODE, "MACE's", "")) is not None:
        return reason
    weights = child_of(part, "weights")
    if not isinstance(weights, nn.ParameterList) or len(weights) != part.correlation - 1:
        return "does not hold what MACE's holds: weights of each degree"
    if len({p.shape[::2] for p in part.parameters()}) != 1:
        return "has weights of several numbers of species or channels"
    return None


class AcceleratedContraction(nn.Module):
    """Replacement of MACE's ``Contraction``, one irrep of the result, with the same weights and coupling tensors.

    ``text`` are irreps of the features, one copy of each. ``mixings`` has the coupling tensors of the degrees 1, 2, ...
    as coefficients of polynomials.
    """

    weights_max: nn.Parameter

    def __init__(self, original: Any, text: str, ir: tuple[int, int]) -> None:
        super().__init__()
        self.num_features, self.coupling_irreps = original.num_features, original.coupling_irreps
        self.correlation = original.correlation
        self.text, self._ir = text, ir
        self._parameters.update(original._parameters)
        self._buffers.update(original._buffers)
        self.weights = original.weights
        self.train(original.training)
        mixings = [self.read(degree, self.U_tensors(degree)) for degree in range(1, self.correlation + 1)]
        if None in mixings:
            degree = mixings.index(None) + 1
            shape = list(self.U_tensors(degree).shape)
            raise ConfigError(
                f"U_matrix_{degree} must be an equivariant tensor of {text}, got another one, {shape}. Build the "
                f"module anew."
            )
        self.mixings = tuple(mixed for mixed in mixings if mixed is not None)

    def U_tensors(self, nu: int) -> Tensor:
        """The coupling tensor of a degree, under MACE's name."""
        return self.get_buffer(f"U_matrix_{nu}")

    def read(self, degree: int, tensor: Tensor) -> Mixing | None:
        """A coupling tensor as coefficients of polynomials; None if the tensor is not equivariant."""
        value = tensor.detach().to("cpu", torch.float64).numpy()
        if self._ir[0] == 0 and value.ndim == degree + 1:  # MACE leaves out the axis of a scalar
            value = value[None]
        known = (mixing(self.text, self._ir, degree, reduced) for reduced in (False, True))
        return read_tensor(self.text, self._ir, degree, known, value, torch.finfo(tensor.dtype).eps)


class AcceleratedSymmetricContraction(FusedReplacement, SymmetricContraction):
    """Replacement of MACE's ``SymmetricContraction``.

    Its coupling tensors stay in the state dict and are those that count, whichever version of e3nn made them and
    whichever paths they are of.
    """

    contractions: nn.ModuleList

    def __init__(self, original: Any, backend: str | None = None) -> None:
        EquivariantModule.__init__(self, "mul_ir", backend)
        text = self._set_irreps(original.irreps_in, original.irreps_out)
        self.correlation, self.one_hot = original.contractions[0].correlation, None
        copies = {mul for mul, _ in (*self.irreps_in, *self.irreps_out)}
        if copies != {original.contractions[0].num_features} or self.correlation > MOST:
            raise ConfigError(
                f"a symmetric contraction must have one number of channels and at most correlation {MOST}, got "
                f"{self.irreps_in} to {self.irreps_out}, correlation {self.correlation}. Leave it to MACE."
            )
        pairs = zip(original.contractions, self.irreps_out, strict=True)
        self.contractions = nn.ModuleList(AcceleratedContraction(one, text, (ir.l, ir.p)) for one, (_, ir) in pairs)
        self._lower()

    @property
    def parts(self) -> list[AcceleratedContraction]:
        """The submodules, one for each irrep of the result."""
        return list(self.contractions)  # type: ignore[arg-type]

    @property
    def num_elements(self) -> int:  # type: ignore[override]
        """Number of species of the weights; MACE's tools may replace the weights by weights of other species."""
        return self.parts[0].weights_max.shape[0]

    @property
    def num_paths(self) -> int:  # type: ignore[override]
        """Number of paths that have weights, of all degrees and irreps."""
        return sum(mixed.shape[1] for one in self.parts for mixed in one.mixings)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a state dict: coupling tensors of the submodules are read here, since torch loads submodules later."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        for k, one in enumerate(self.parts):
            mixings = list(one.mixings)
            for degree in range(1, self.correlation + 1):
                key = f"{prefix}contractions.{k}.U_matrix_{degree}"
                tensor = state_dict.get(key)
                if tensor is None or tensor.is_meta or tensor.shape != one.U_tensors(degree).shape:
                    continue  # torch says so itself
                read = one.read(degree, tensor)
                if read is None:
                    args[-1].append(f"{key} must hold equivariant tensors of {self.irreps_in}, got others.")
                else:
                    mixings[degree - 1] = read
            one.mixings = tuple(mixings)
        self._lower()

    def restore(self) -> nn.Module:
        """The original; its submodules have the Parameters and buffers of this module's submodules."""
        original = self._give_back()
        for mine, theirs in zip(self.contractions, original.get_submodule("contractions").children(), strict=True):
            for kind in ("_parameters", "_buffers"):
                vars(theirs)[kind].update(vars(mine)[kind])
            theirs._modules["weights"] = mine._modules["weights"]
        return original

    def probes(self, original: Any, rows: int) -> list[Probe]:
        """Inputs for the comparison with the original."""
        return [_probe(original, self, rows, mixed) for mixed in (False, True)]

    def exact_constants(self, original: Any) -> Operands:
        """Coupling tensors in float64, where the stored ones are rounded."""
        constants = {}
        for k, (part, (_, ir)) in enumerate(zip(self.parts, self.irreps_out, strict=True)):
            for degree, mixed in enumerate(part.mixings, 1):
                stored = part.U_tensors(degree)
                polynomials = polynomials_of(part.text, (ir.l, ir.p), degree, mixed)
                shape = (2 * ir.l + 1, *[self.dim] * degree, mixed.shape[1])
                held = stored.detach().double().cpu().reshape(shape).numpy()
                rest = abs(from_dense(held, self.dim, degree) - polynomials).max(initial=0.0)
                if rest > EXACT * abs(polynomials).max(initial=0.0):
                    exact = torch.from_numpy(dense(polynomials, self.dim, degree))
                    constants[f"contractions.{k}.U_matrix_{degree}"] = exact.reshape(stored.shape)
        return constants


RULES = (Rule("contraction", part_if(_is_any), _refuse, AcceleratedSymmetricContraction.of),)


def _probe(original: Any, replacement: AcceleratedSymmetricContraction, rows: int, mixed: bool) -> Probe:
    """Random features and weights, with species as one-hot rows or, with ``mixed``, as random rows."""
    count = replacement.num_elements
    operands = {"x": draw("x", rows, replacement.channels, replacement.dim)}
    if mixed:
        operands["y"] = draw("y", rows, count)
    weights = {name: f"weights {name}" for name, _ in original.named_parameters()}
    operands |= {operand: draw(operand, *original.get_parameter(name).shape) for name, operand in weights.items()}
    species = torch.nn.functional.one_hot(torch.arange(rows, device="cpu") % count, count)

    def run(module: nn.Module, o: Operands) -> Tensor:
        state = {name: o[operand] for name, operand in weights.items()}
        return call_with(module, state, o["x"], o.get("y", species.to(o["x"])))

    return Probe(operands, run)
