"""Options and steps that commands of potentials share."""

from __future__ import annotations

import argparse
import copy

import ase
import torch

from ..cli.arguments import add_classes
from ..core.backends.ahead import compile_ahead
from ..integrations.ase import predict
from ..models import Committee, Potential
from .committee import MODELS

DTYPES = {"float32": torch.float32, "float64": torch.float64}
_FEW = 32  # atoms whose kernels are compiled before all atoms come


def add_common(parser: argparse.ArgumentParser) -> None:
    """The models, their dtype and device, and classes of one's own."""
    parser.add_argument("-m", "--model", required=True, action="append", metavar="MODEL", help=MODELS)
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of the network; the model's by default")
    parser.add_argument("--device", default="cpu", help="cpu by default; cuda or cuda:1 for a GPU")
    add_classes(parser)


def compile_for(potential: Potential | Committee, atoms: ase.Atoms) -> None:
    """Compile the kernels of energies, forces and stress; faults of the atoms are reported later.

    A few atoms are enough, as no kernel depends on their number, and operands of all calls are in memory at once.
    """
    compile_ahead(lambda: list(predict(copy.deepcopy(potential), [atoms[:_FEW]])))
