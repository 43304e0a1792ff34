"""Statistics of the training part: per-species shifts, scale, mean number of neighbours; and the two baselines."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eqlayers.data.molecules import MoleculeArrays, check_molecules
from eqlayers.data.neighbors import Edges, check_edges
from eqlayers.data.splits import check_rows
from eqlayers.data.targets import Target, check_target

from ..core.checks import check_type
from ..core.errors import DataError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Statistics of the training part that a model needs, in float64.

    Attributes:
        species: Atomic numbers in the whole data set, ascending.
        shifts: Energy (or other extensive value) of an atom of each species, in the target's unit; zeros for an
            intensive target, and for a species that no training molecule has.
        scale: Standard deviation of the labels less the shifts (extensive) or of the labels (intensive); never 0.
        mean: Mean label.
        std: Standard deviation of the labels.
        mean_neighbors: Mean number of edges that an atom receives.
        num_train: Number of training molecules.
    """

    species: tuple[int, ...]
    shifts: dict[int, float]
    scale: float
    mean: float
    std: float
    mean_neighbors: float
    num_train: int


def regression(counts: IntArray, y: FloatArray, intercept: bool) -> FloatArray:
    """Least-squares coefficients of the numbers of atoms (and of 1); the shortest solution if they are not unique."""
    return np.asarray(np.linalg.lstsq(_columns(counts, intercept), y, rcond=None)[0])


def _columns(counts: IntArray, intercept: bool) -> FloatArray:
    columns = counts.astype(np.float64)
    return np.concatenate([columns, np.ones((len(columns), 1))], axis=1) if intercept else columns


def compute_statistics(
    molecules: MoleculeArrays, edges: Edges, train: IntArray, target: Target, atomref: Mapping[int, float] | None = None
) -> Statistics:
    """Statistics of the training part.

    For an extensive target the shifts are the least-squares fit of the labels by the numbers of atoms of each species,
    or `atomref` if given.

    Args:
        molecules: The whole data set.
        edges: Its neighbour lists.
        train: Rows of the training part.
        target: What the labels are.
        atomref: Reference value of every species in the target's unit, in place of the fit.

    Returns:
        The statistics.

    Raises:
        DataError: If `atomref` lacks a species of the data set.
    """
    check_edges(edges, check_molecules(molecules))
    train, target = check_rows("train", train, len(molecules.y)), check_target(target)
    if atomref is not None:
        check_type("atomref", atomref, Mapping, "a mapping from atomic number to energy, or None", "Pass a dict.")
    species = tuple(int(number) for number in np.unique(molecules.z))
    counts, y = molecules.counts(species), molecules.y[train]
    _warn_unseen(species, counts, train)
    coefficients = np.zeros(len(species))
    if target.extensive and atomref is not None:
        missing = [number for number in species if number not in atomref]
        if missing:
            raise DataError(
                f"atomref: expected a value for every species of {molecules.source}; atomic numbers {missing} have "
                'none; use shifts="regression"'
            )
        coefficients = np.array([atomref[number] for number in species])
    elif target.extensive:
        coefficients = regression(counts[train], y, intercept=False)
    scale = float(np.std(y - counts[train] @ coefficients))
    return Statistics(
        species=species,
        shifts={number: float(value) for number, value in zip(species, coefficients, strict=True)},
        # One molecule, or labels that the composition explains fully, leave only rounding noise: nothing to scale by.
        scale=scale if scale > 1e-12 * max(1.0, float(np.abs(y).max())) else 1.0,
        mean=float(y.mean()),
        std=float(y.std()),
        mean_neighbors=float(edges.n_edges[train].sum() / molecules.n_atoms[train].sum()),
        num_train=len(train),
    )


def _warn_unseen(species: tuple[int, ...], counts: IntArray, train: IntArray) -> None:
    seen: list[bool] = (counts[train].sum(axis=0) > 0).tolist()
    for number, here, column in zip(species, seen, counts.T, strict=True):
        if not here:
            warnings.warn(
                f"atomic number {number} is in {int((column > 0).sum())} molecules but in none of the {len(train)} "
                "training molecules: its shift is 0 and predictions for these molecules mean nothing",
                stacklevel=4,
            )


def compute_baselines(molecules: MoleculeArrays, train: IntArray, rows: IntArray, target: Target) -> dict[str, float]:
    """Errors of two predictors that see no geometry.

    Args:
        molecules: The whole data set.
        train: Rows that the predictors are fitted to.
        rows: Rows that they are evaluated on.
        target: What the labels are.

    Returns:
        `"mean"`: mean absolute error of the training mean; `"composition"`: the error of a linear regression on the
        numbers of atoms of each species, with an intercept for an intensive target; `"mean_rmse"` and
        `"composition_rmse"`: their root mean squared errors. All in the target's unit.
    """
    check_molecules(molecules)
    train, rows = check_rows("train", train, len(molecules.y)), check_rows("rows", rows, len(molecules.y))
    check_target(target)
    counts = molecules.counts(tuple(int(number) for number in np.unique(molecules.z)))
    y, intercept = molecules.y, not target.extensive
    fit = regression(counts[train], y[train], intercept)
    errors = {"mean": y[rows] - y[train].mean(), "composition": y[rows] - _columns(counts[rows], intercept) @ fit}
    mae = {name: float(np.abs(error).mean()) for name, error in errors.items()}
    return mae | {f"{name}_rmse": float(np.sqrt(np.square(error).mean())) for name, error in errors.items()}
