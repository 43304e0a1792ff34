"""Mistakes with SymmetricContraction that follow from several arguments, or whose message has a hint."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eqlayers.errors import (
    ConfigError,
    DeviceError,
    DTypeError,
    EqlayersError,
    IndexRangeError,
    IrrepsError,
    ShapeError,
)
from eqlayers.nn import SymmetricContraction
from tests.each import refused

ABC = "2x0e + 2x1o + 2x2e"
SPECIES = torch.tensor([1, 0, 1, 1])


def make(
    irreps_in: Any = ABC, irreps_out: Any = "2x0e", correlation: Any = 3, elements: Any = 2, **options: Any
) -> Any:
    return SymmetricContraction(irreps_in, irreps_out, correlation, elements, **options)


def call(x: Any = None, y: Any = SPECIES) -> Callable[[], Any]:
    return lambda: make()(torch.zeros(4, 2, 9) if x is None else x, y)


MISTAKES: list[tuple[type[EqlayersError], str, Callable[[], Any]]] = [
    (IrrepsError, r"irreps_in .*one copy.*2x0e\+0x1o", lambda: make("2x0e + 0x1o")),
    (IrrepsError, "irreps_in .*one copy.*got none", lambda: make("")),
    (IrrepsError, "irreps_out .*irreps_in, 2, got 3x0e", lambda: make(ABC, "3x0e")),
    (ConfigError, "correlation .*at most 4, got 5", lambda: make(correlation=5)),
    (ConfigError, "correlation", lambda: make(correlation={"0e": 3})),
    (ConfigError, "irrep_normalization .*'norm'", lambda: make(irrep_normalization="norm")),
    (ConfigError, "path_normalization .*'path'", lambda: make(path_normalization="path")),
    (ConfigError, "internal_weights", lambda: make(internal_weights=False)),
    (ConfigError, "shared_weights", lambda: make(shared_weights=False)),
    (ConfigError, "cueq_config", lambda: make(cueq_config=5)),
    (ConfigError, "oeq_config", lambda: make(oeq_config=5)),
    (ShapeError, r"x must be \[N, 2, 9\] or \[N, 18\], got \[4, 9\]", call(torch.zeros(4, 9))),
    (ShapeError, "x .*Channels come before components", call(torch.zeros(4, 9, 2))),
    (DTypeError, "weights 0 .*dtype of x", call(torch.zeros(4, 18).double())),
    (DeviceError, "weights 0 .*device of x", call(torch.zeros(4, 18, device="meta"), SPECIES.to("meta"))),
    (DeviceError, "y .*device of x, cpu, got meta", call(y=SPECIES.to("meta"))),
    (DTypeError, r"y .*float32\. Convert it with `.long\(\)`", call(y=torch.ones(4))),
    (DTypeError, "y .*complex64", call(y=torch.ones(4, 2, dtype=torch.complex64))),
    (ShapeError, "y .*N = 4, the rows of x", call(y=SPECIES[:3])),
    (ShapeError, r"y .*\[4, 3\].*of 2", call(y=torch.ones(4, 3))),
    (IndexRangeError, r"y must lie in \[0, 2\), the number of species.*from 0 to 2", call(y=SPECIES * 2)),
]


test_mistakes = refused("error, message, call", MISTAKES)


def test_degrees_that_e3nn_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """e3nn 0.4.4 has a table up to 11; later ones compute."""

    def refuse(*degrees: int) -> None:
        raise NotImplementedError("maximum l implemented is 11")

    monkeypatch.setattr("eqlayers.layers.contraction.basis.wigner_3j", refuse)
    with pytest.raises(IrrepsError, match=r"must have degrees whose couplings e3nn knows, got 2x12e.*says: maximum"):
        make("2x12e", "2x0e")


def test_state_dicts_that_do_not_fit() -> None:
    layer, reduced = make(), make(use_reduced_cg=True)
    with pytest.raises(RuntimeError, match=r"U_matrix_3 must be \[9, 9, 9, 11\], got \[9, 9, 9, 5\].*use_reduced_cg"):
        layer.load_state_dict(reduced.state_dict())
    state = layer.state_dict()
    state["contractions.0.U_matrix_2"] = torch.randn(9, 9, 3)
    with pytest.raises(RuntimeError, match=r"U_matrix_2 must hold equivariant tensors.*Check the order"):
        layer.load_state_dict(state)
    del state["contractions.0.U_matrix_2"]
    with pytest.raises(RuntimeError, match=r"Missing key.*U_matrix_2"):
        layer.load_state_dict(state)
