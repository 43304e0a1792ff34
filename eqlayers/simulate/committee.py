"""Committees in the commands of potentials: the models that are typed, and deviations beside errors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..models.committee import DEVIATION, MARK, Array, calibration

_ENDINGS = (".pt", ".pth", ".ckpt")  # of potentials among words that may be structures
MODELS = (
    "a file of save_potential, or a checkpoint of `eqlayers fit`; several, a pattern such as 'runs/a*/potential.pt' "
)
MODELS += "or the folder of `eqlayers fit --committee` make a committee"


def is_model(word: str) -> bool:
    """Whether a word that was typed is a potential, and not a file of structures.

    Example:
        >>> is_model("runs/*/potential.pt"), is_model("water.xyz")
        (True, False)
    """
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
    follows = value = False  # whether a model came before, and whether the next word is the value of an option
    for word in args:
        if value or word.startswith("-"):
            words.append(word)
            follows = value or word.startswith("--model=")
            value = word in ("-m", "--model") and not value
        elif follows and is_model(word):
            (behind if first else words).extend(["-m", word])
        else:
            words.append(word)
            follows = first and is_model(word)
    return [*words, *behind]


def add_members(parser: argparse.ArgumentParser) -> None:
    """The first model, and the option of those that follow."""
    parser.add_argument("model", metavar="MODEL", help=MODELS)
    about = "one more member of a committee; further models may also follow MODEL"
    parser.add_argument("-m", "--model", dest="members", action="append", default=[], metavar="MODEL", help=about)


def chosen(models: Sequence[str]) -> str | list[str]:
    """One name as itself, which may be a pattern or a folder; several as a list."""
    return models[0] if len(models) == 1 else list(models)


class Deviations:
    """Deviations of a committee, and errors where there are labels, over many structures.

    Example:
        >>> found = Deviations("forces", "meV/A")
        >>> found.add(np.array([0.1, 0.2, 0.3]), np.array([[0.1, 0, 0], [0, 0.2, 0], [0, 0, 0.3]]))
        >>> found.row()[1]
        'mean 200, largest 300 meV/A; its correlation with the error is 1.00, errors are 1.0 times as large'
    """

    def __init__(self, name: str, unit: str) -> None:
        self.name, self.unit = name, unit
        self._deviations: list[Array] = []
        self._pairs: list[Array] = []

    @classmethod
    def of(cls, result: dict[str, Any], units: dict[str, str]) -> dict[str, Deviations]:
        """One for each name that has a deviation."""
        return {name: cls(name, unit) for name, unit in units.items() if DEVIATION.format(name) in result}

    def add(self, deviation: Any, error: Any = None, per: int = 1) -> None:
        """Note the deviations of a structure.

        Args:
            deviation: A number, or one for each atom.
            error: Of the mean, with the same rows and any number of columns; NaN where there is no label.
            per: What both are divided by.
        """
        rows = np.atleast_1d(np.asarray(deviation, dtype=np.float64)) / per
        self._deviations.append(rows)
        if error is not None:
            sizes = np.linalg.norm(np.asarray(error, dtype=np.float64).reshape(len(rows), -1), axis=1) / per
            pairs = np.stack([rows, sizes])
            self._pairs.append(pairs[:, np.isfinite(pairs).all(0)])

    def row(self) -> tuple[str, str]:
        """A line of the table that `predict` prints."""
        values = 1000 * np.concatenate(self._deviations)
        text = f"mean {values.mean():.4g}, largest {values.max():.4g} {self.unit}"
        deviations, errors = np.hstack([np.empty((2, 0)), *self._pairs])
        if fit := calibration(deviations, errors):
            correlation, larger = fit
            text += f"; its correlation with the error is {correlation:.2f}, errors are {larger:.1f} times as large"
        return f"deviation of {self.name}", text
