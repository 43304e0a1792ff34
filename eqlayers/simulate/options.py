"""Options and compilation that commands with potentials share, and the models that a user types."""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any

import ase
import torch

from ..cli.arguments import add_classes
from ..cli.notices import progress
from ..core.backends.ahead import compile_ahead
from ..core.errors import BackendError, ConfigError, EqlayersWarning
from ..integrations.ase import as_potential, predict
from ..models import Committee, Potential
from ..models.committee import MARK
from ..models.compiled import WORTH_COMPILING
from ..models.molecule import MoleculeProperty
from ..native import NativePotential, as_native

DTYPES = {"float32": torch.float32, "float64": torch.float64}
_FEW = 32  # atoms of the structure that kernels are compiled with
_ENDINGS = (".pt", ".pth", ".ckpt")  # of potentials among words that may be structures
MODELS = (
    "a file of save_potential, or a checkpoint of `eqlayers fit`; several, a pattern such as 'runs/a*/potential.pt' "
)
MODELS += "or the folder of `eqlayers fit --committee` make a committee"


def is_model(word: str) -> bool:
    """Whether a word that was typed is a potential, and not a file of structures."""
    return Path(word).suffix in _ENDINGS or (Path(word) / MARK).is_file()


def one_option_each(args: Sequence[str], first: bool) -> list[str]:
    """The words of a command with ``-m`` before each model, so that structures may come before or after the models.

    Example:
        >>> one_option_each(["-m", "a.pt", "b.pt", "water.xyz"], first=False)
        ['-m', 'a.pt', '-m', 'b.pt', 'water.xyz']
        >>> one_option_each(["a.pt", "b.pt", "water.xyz"], first=True)
        ['a.pt', 'water.xyz', '-m', 'b.pt']
    """
    words: list[str] = []
    behind: list[str] = []
    for option, before, word in zip(["", "", *args], ["", *args], args, strict=False):
        if is_model(word) and (is_model(before) or option in ("-m", "--model")):
            (behind if first else words).extend(["-m", word])
        else:
            words.append(word)
    return [*words, *behind]


def add_members(parser: argparse.ArgumentParser) -> None:
    """Add a model as argument to a parser, and ``--model`` for further members of a committee."""
    add_classes(parser)
    parser.add_argument("model", metavar="MODEL", help=MODELS)
    about = "one more member of a committee; further models may also follow MODEL"
    parser.add_argument("-m", "--model", dest="members", action="append", default=[], metavar="MODEL", help=about)


def loaded(options: argparse.Namespace) -> Potential | Committee:
    """The potential or committee that the options of :func:`add_common` name."""
    one, *more = options.model  # which may be a pattern or the folder of a committee
    return as_potential(options.model if more else one, DTYPES.get(options.dtype), options.device, options.classes)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add --model, --dtype, --device and --classes to a parser."""
    parser.add_argument("-m", "--model", required=True, action="append", metavar="MODEL", help=MODELS)
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of the network; the model's by default")
    parser.add_argument("--device", default="cpu", help="cpu by default; cuda or cuda:1 for a GPU")
    add_classes(parser)


def compile_for(potential: Potential | Committee | MoleculeProperty, atoms: ase.Atoms) -> None:
    """Compile kernels of energies, forces and stress in advance for a few atoms; errors are left to the real call."""
    compile_ahead(lambda: list(predict(copy.deepcopy(potential), [atoms[:_FEW]])))


def native_for(potential: Potential | Committee | MoleculeProperty) -> NativePotential | None:
    """The program of a potential of the energy on a CPU; None for others, or with a warning that names the reason."""
    if isinstance(potential, Potential) and potential.device.type == "cpu" and potential.properties == ("energy",):
        try:
            return as_native(potential)
        except (ConfigError, BackendError) as error:
            warnings.warn(f"the potential runs by Python: {error}", EqlayersWarning, stacklevel=2)
    return None


def predictions(
    potential: Potential | Committee | MoleculeProperty, structures: Iterator[ase.Atoms], batch_size: int
) -> Iterator[tuple[ase.Atoms, dict[str, Any]]]:
    """Iterate over structures with their results, with a progress bar; many on a CPU run a native program."""
    first = list(islice(structures, WORTH_COMPILING))
    program = native_for(potential) if len(first) == WORTH_COMPILING else None
    if first and program is None:
        compile_for(potential, first[0])
    read, again = tee(chain(first, structures))
    with progress("predict") as say:
        for count, pair in enumerate(zip(read, predict(program or potential, again, batch_size), strict=True), 1):
            yield pair
            say(count, f"{count} structures")
