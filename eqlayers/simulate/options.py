"""Options and compilation shared by commands that use potentials."""

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
_FEW = 32  # atoms of the structure that kernels are compiled with


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add --model, --dtype, --device and --classes to a parser."""
    parser.add_argument("-m", "--model", required=True, action="append", metavar="MODEL", help=MODELS)
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of the network; the model's by default")
    parser.add_argument("--device", default="cpu", help="cpu by default; cuda or cuda:1 for a GPU")
    add_classes(parser)


def compile_for(potential: Potential | Committee, atoms: ase.Atoms) -> None:
    """Compile kernels of energies, forces and stress in advance for a few atoms; errors are left to the real call."""
    compile_ahead(lambda: list(predict(copy.deepcopy(potential), [atoms[:_FEW]])))
