"""Options that commands of potentials share, and kernels that are compiled before the first structure."""

import argparse

import pytest
import torch
from ase import Atoms

from eqlayers.models import Potential
from eqlayers.simulate.options import DTYPES, add_common, compile_for


def test_models_are_collected_and_dtypes_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_common(parser)
    options = parser.parse_args(["-m", "a.pt", "--model", "b.pt", "--dtype", "float64"])
    assert (options.model, DTYPES[options.dtype], options.device) == (["a.pt", "b.pt"], torch.float64, "cpu")
    with pytest.raises(SystemExit):
        parser.parse_args(["-m", "a.pt", "--dtype", "float16"])
    assert "float16" in capsys.readouterr().err


def test_compiling_ahead_leaves_potential_and_atoms(potential: Potential, water: Atoms) -> None:
    before = {name: value.clone() for name, value in potential.state_dict().items()}
    compile_for(potential, water)
    assert water.calc is None
    assert all(parameter.grad is None for parameter in potential.parameters())
    for name, value in potential.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
