"""Committees in the commands of potentials: the models that are typed, and deviations beside errors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..cli.arguments import add_classes
from ..models.committee import MARK, Array, calibration

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
    add_classes(parser)
    parser.add_argument("model", metavar="MODEL", help=MODELS)
    about = "one more member of a committee; further models may also follow MODEL"
    parser.add_argument("-m", "--model", dest="members", action="append", default=[], metavar="MODEL", help=about)


def chosen(models: Sequence[str]) -> str | list[str]:
    """One name as itself, which may be a pattern or a folder; several as a list."""
    return models[0] if len(models) == 1 else list(models)


class Compared:
    """Errors of a quantity where there are labels, and deviations of a committee, over many structures."""

    def __init__(self, name: str, unit: str, factor: float = 1000.0) -> None:
        self.name, self.unit, self.factor = name, unit, factor
        self._errors: list[Array] = []
        self._deviations: list[Array] = []
        self._pairs: list[Array] = []

    def add(self, error: Array | None, deviation: Any, per: int = 1) -> None:
        """Note errors of a structure, NaN where there is no label, and deviations of its rows, both over ``per``."""
        if error is not None:
            self._errors.append(error[np.isfinite(error)] / per)
        if deviation is None:
            return
        rows = np.atleast_1d(np.asarray(deviation, dtype=np.float64)) / per
        self._deviations.append(rows)
        if error is not None:
            pairs = np.stack([rows, np.linalg.norm(error.reshape(len(rows), -1), axis=1) / per])
            self._pairs.append(pairs[:, np.isfinite(pairs).all(0)])

    def mean_error(self) -> float | None:
        """The mean absolute error, in the unit; None without labels."""
        values = np.hstack([np.empty(0), *self._errors])
        return self.factor * float(np.abs(values).mean()) if values.size else None

    def error_rows(self) -> list[tuple[str, str]]:
        """A line of the table that `predict` prints; none without labels."""
        if (mean := self.mean_error()) is None:
            return []
        root = self.factor * np.sqrt(np.square(np.hstack(self._errors)).mean())
        return [(f"error of {self.name}", f"mean {mean:.4g}, root mean square {root:.4g} {self.unit}")]

    def deviation_rows(self) -> list[tuple[str, str]]:
        """A line of the table that `predict` prints; none of a single potential."""
        if not self._deviations:
            return []
        values = self.factor * np.concatenate(self._deviations)
        text = f"mean {values.mean():.4g}, largest {values.max():.4g} {self.unit}"
        deviations, errors = np.hstack([np.empty((2, 0)), *self._pairs])
        if fit := calibration(deviations, errors):
            correlation, larger = fit
            text += f"; its correlation with the error is {correlation:.2f}, errors are {larger:.1f} times as large"
        return [(f"deviation of {self.name}", text)]
