"""Problems as data: irreps of a tensor product, its paths, and the numbers that say whether they are the right ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from e3nn import o3

from ..algebra import as_irreps, wigner_3j
from ..checks import check_choice
from ..errors import ConfigError
from ..lowering.path_lists import paths
from .config import check_known, read_config, read_fields

WEIGHTS = ("per edge", "shared")
FACTS = ("dim in1", "dim in2", "dim out", "weight_numel", "paths", "nonzero CG terms")


# mode -> irreps of the output and instructions, from (in1, in2, out); for 'uvu', out lists the irreps that are kept
PATHS: dict[str, Callable[[o3.Irreps, o3.Irreps, o3.Irreps], tuple[o3.Irreps, list[tuple[Any, ...]]]]] = {
    "uvu": lambda in1, in2, out: paths(in1, in2, out),
    "uvw": lambda in1, in2, out: paths(in1, in2, irreps_out=out, mode="uvw"),
}


@dataclass(frozen=True)
class Problem:
    """A tensor product to be timed.

    Attributes:
        name: Its name.
        mode: 'uvu' (every path has an output of its own) or 'uvw' (all paths into the given output).
        in1, in2, out: Irreps as text; for 'uvu', ``out`` lists the irreps that are kept.
        weights: 'per edge' or 'shared'.

    Example:
        >>> Problem("small", "uvu", "4x0e+4x1o", "0e+1o", "0e+1o").facts()
        (16, 4, 32, 16, 4, 10)
    """

    name: str
    mode: str
    in1: str
    in2: str
    out: str
    weights: str = "per edge"

    def __post_init__(self) -> None:
        """Refuse what :func:`read_problems` would.

        Raises:
            ConfigError: An unknown mode or kind of weights.
        """
        check_choice("mode", self.mode, PATHS)
        check_choice("weights", self.weights, WEIGHTS)

    @cached_property
    def irreps_in1(self) -> o3.Irreps:
        """Irreps of the node features."""
        return as_irreps(self.in1, f"in1 of {self.name}")

    @cached_property
    def irreps_in2(self) -> o3.Irreps:
        """Irreps of the edge attributes."""
        return as_irreps(self.in2, f"in2 of {self.name}")

    @cached_property
    def _paths(self) -> tuple[o3.Irreps, list[tuple[Any, ...]]]:
        return PATHS[self.mode](self.irreps_in1, self.irreps_in2, as_irreps(self.out, f"out of {self.name}"))

    @property
    def irreps_out(self) -> o3.Irreps:
        """Irreps of the result."""
        return self._paths[0]

    @property
    def instructions(self) -> list[tuple[Any, ...]]:
        """Instructions ``(i_in1, i_in2, i_out, mode, has_weight)``."""
        return self._paths[1]

    @property
    def shared(self) -> bool:
        """Whether one set of weights serves all edges."""
        return self.weights == "shared"

    @cached_property
    def path_weights(self) -> list[int]:
        """Weights of every path, of an edge or of all edges together if shared."""
        irreps = (self.irreps_in1, self.irreps_in2, self.irreps_out)
        muls = [[r[index].mul for r, index in zip(irreps, ins[:3], strict=True)] for ins in self.instructions]
        return [u * v * (w if self.mode == "uvw" else 1) for u, v, w in muls]

    @property
    def weight_numel(self) -> int:
        """Weights of an edge, or of all edges together if shared."""
        return sum(self.path_weights)

    def arguments(self) -> dict[str, Any]:
        """Arguments of e3nn's ``TensorProduct``, which are also this package's."""
        return {
            "irreps_in1": self.irreps_in1,
            "irreps_in2": self.irreps_in2,
            "irreps_out": self.irreps_out,
            "instructions": self.instructions,
            "shared_weights": self.shared,
            "internal_weights": False,
        }

    def facts(self) -> tuple[int, ...]:
        """Dimensions, weights, paths and nonzero Clebsch-Gordan coefficients, as ``FACTS`` names them."""
        irreps = (self.irreps_in1, self.irreps_in2, self.irreps_out)
        degrees = [[r[index].ir.l for r, index in zip(irreps, ins[:3], strict=True)] for ins in self.instructions]
        terms = sum(int(np.count_nonzero(wigner_3j(*ls))) for ls in degrees)
        return (*(r.dim for r in irreps), self.weight_numel, len(self.instructions), terms)


def read_problems(path: Path) -> dict[str, Problem]:
    """The problems of a file, each compared with its ``check``.

    Args:
        path: A YAML file: ``mode``, and ``problems`` by name with in1, in2, out, check and optionally weights.

    Returns:
        Problems by name.

    Raises:
        ConfigError: The file does not say what is needed, or a problem is not the one that its numbers describe.
        IrrepsError: Irreps that cannot be read.
    """
    top = read_fields(str(path), read_config(path), {"mode": "text", "problems": "mapping"}, {})
    check_known("mode", [top["mode"]], PATHS, f"{path}, mode")
    problems = {}
    for name, given in top["problems"].items():
        where = f"{path}, {name}"
        needed = {"in1": "text", "in2": "text", "out": "text", "check": "counts"}
        fields = read_fields(where, given, needed, {"weights": ("text", "per edge")})
        check_known("value of weights", [fields["weights"]], WEIGHTS, where)
        check = tuple(fields.pop("check"))
        problem = Problem(str(name), top["mode"], **fields)
        if problem.facts() != check:
            raise ConfigError(
                f"{where}: the irreps must have check = {list(check)} ({', '.join(FACTS)}), they have "
                f"{list(problem.facts())}. Correct the irreps or the numbers."
            )
        problems[str(name)] = problem
    return problems
