"""The command `eqlayers convert`: convert files of MACE and NequIP to potentials of this package, and back."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..cli.arguments import ArgumentParser, add_classes
from ..core.errors import ConfigError
from ..core.files.read_write import atomic_write, check_output
from ..models import Potential, load_potential, read_potential, save_potential
from ..models.saving import Classes
from .from_mace import from_mace, to_mace
from .from_nequip import load_nequip, write_nequip

__all__ = ["convert", "run"]


def _write_mace(potential: Potential, path: Path) -> None:
    """Convert a potential to a model of mace-torch and save it."""
    model = to_mace(potential)
    with atomic_write(path) as file:
        torch.save(model, file)


class Format(NamedTuple):
    """A file format: endings of readable files, ending of written files, reader, writer, description."""

    read_endings: tuple[str, ...]
    written_ending: str
    read: Callable[[str, str | None, Classes | None], Potential]
    write: Callable[[Potential, Path], None]
    about: str


FORMATS = {
    "eqlayers": Format(
        (".pt", ".pth", ".ckpt"),
        ".pt",
        lambda path, head, classes: load_potential(path, classes=classes),
        save_potential,
        "a potential of this package",
    ),
    "mace": Format(
        (".model",),
        ".model",
        lambda path, head, classes: from_mace(path, head),
        _write_mace,
        "a model of mace-torch, as `torch.save` writes it",
    ),
    "nequip": Format(
        (".nequip.zip", ".ckpt"),
        ".ckpt",
        lambda path, head, classes: load_nequip(path),
        write_nequip,
        "a checkpoint or a package of nequip",
    ),
}


def convert(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    head: str | None = None,
    read_as: str | None = None,
    classes: Classes | None = None,
) -> Potential:
    """Convert the file of a model.

    Energies, forces and stress are equal up to rounding; parts without a counterpart raise an error.

    Args:
        source: A potential of this package (``.pt``, ``.ckpt``), a model of mace-torch (``.model``), or a package of
            nequip (``.nequip.zip``). Files of the other packages can run any code: convert only those that you trust.
        output: A new file; its ending names the format: ``.pt`` of this package, ``.model`` of mace-torch, ``.ckpt`` of
            nequip.
        head: Name of a head, of a model of mace-torch with several.
        read_as: Format of the source, 'eqlayers', 'mace' or 'nequip'; None to infer it from the ending, where ``.ckpt``
            is this package's.
        classes: Allowed classes of your own, as of :func:`eqlayers.models.load_potential`.

    Returns:
        The potential that was written.

    Raises:
        ConfigError: The source does not exist, the output exists, an ending is unknown, a package is not installed, or
            the other format does not support a part of the model.
        DataError: The file is damaged.

    Example:
        >>> convert("my.model", "my.txt")
        Traceback (most recent call last):
            ...
        eqlayers.errors.ConfigError: OUTPUT must end in .pt, .model, .ckpt, got 'my.txt'. ...
    """
    written = {form.written_ending: name for name, form in FORMATS.items()}
    path = check_output(
        Path(output), "OUTPUT", written, "The ending names the format: eqlayers, mace, nequip.", "Name another."
    )
    name = os.fspath(source)
    formats = [key for key, form in FORMATS.items() if name.endswith(form.read_endings)]
    if read_as is None and not formats:
        known = ", ".join(dict.fromkeys(ending for form in FORMATS.values() for ending in form.read_endings))
        raise ConfigError(f"MODEL must end in {known}, got {name!r}. Name its format: --from mace")
    if not Path(name).is_file():
        raise ConfigError(f"MODEL must be a file, got nothing at {name}. Correct the path.")
    chosen = formats[0] if read_as is None else read_as
    if head is not None and chosen != "mace":
        raise ConfigError(f"head must be left out for a model without heads, got {head!r}. Leave it out.")
    potential = FORMATS[chosen].read(name, head, classes)
    if written[path.suffix] == "eqlayers":
        facts = read_potential(name).facts if chosen == "eqlayers" else {"units": "eV, Angstrom"}
        save_potential(potential, path, {**facts, "converted from": Path(name).name})
    else:
        FORMATS[written[path.suffix]].write(potential, path)
    return potential


def run(args: Sequence[str]) -> int:
    """Run the command; the exit status 0."""
    about = "\n".join(f"{name:9} {' '.join(form.read_endings):17} {form.about}" for name, form in FORMATS.items())
    trust = "Files of mace and nequip can run any code when they are read: convert only those that you trust."
    parser = ArgumentParser(
        prog="eqlayers convert",
        description="Convert a model of MACE or NequIP to a potential of this package, and back.",
        epilog=f"formats:\n{about}\n\n{trust}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="the file of a model")
    parser.add_argument("-o", "--output", required=True, metavar="OUTPUT", help="a new .pt, .model or .ckpt")
    parser.add_argument("--head", help="name of a head, of a MACE with several")
    about = "format of MODEL; told by its ending if left out, where a .ckpt is of eqlayers"
    parser.add_argument("--from", dest="read_as", choices=FORMATS, help=about)
    add_classes(parser)
    options: Any = parser.parse_args(list(args))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The TorchScript type system")  # torch about e3nn 0.4, which mace-torch needs
        potential = convert(options.model, options.output, options.head, options.read_as, options.classes)
    print(f"wrote {options.output}: {type(potential.network).__name__}, {potential.extra_repr()}")
    return 0
