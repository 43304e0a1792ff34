"""The Lightning data modules of structures in files: of potentials, and of one property of any name."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eqlayers.atoms.elements import symbols_of
from eqlayers.atoms.units import KEYS, read_units
from eqlayers.core.files.read_write import few
from eqlayers.data.batches import StructureDataset
from eqlayers.data.cache import user_cache_dir
from eqlayers.data.datamodule import PARTS, SplitDataModule, read_auxiliary
from eqlayers.data.embedded import PUBLISHED, check_published, embedded_source, find_published
from eqlayers.data.neighbors import Edges
from eqlayers.data.plausible import check_physics, check_sizes, named
from eqlayers.data.qm9 import NO_UNIT, Target, own_target
from eqlayers.data.readers import different_states, read_file, read_keys
from eqlayers.data.replay import check_energies, only_labels, read_replay, replayed
from eqlayers.data.splits import SPLIT_SEED, STRUCTURE_SPLITS, limited, split_structures
from eqlayers.data.statistics import read_e0s, without_training
from eqlayers.data.structures import StructureArrays

from ..core.checks import (
    check_choice,
    check_dtype,
    check_flag,
    check_integer,
    check_items,
    check_path,
    check_seed,
    check_type,
    got,
)
from ..core.errors import ConfigError, EqlayersWarning

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class StructureDataModule(SplitDataModule):
    """Structures with energies, forces and stress, split, batched, described, and searched for common mistakes.

    Batches are `torch_geometric.data.Batch`: what `StructureDataset` gives, concatenated, with `batch`
    `[A]` and `num_graphs`. A label that a structure lacks is NaN; `labels` names those that occur.

    After `setup`: `train_set`, `val_set`, `test_set`, `statistics`, `labels` of the new structures of the training
    part, `report`, the lines that say what was read, which are logged as well, and `findings`, the warnings about
    mistakes that may be none; `lone_set`, free atoms with an energy, which are in no part.

    Args:
        path: A file that ASE reads, an npz archive as of rMD17, or an embedded set of GFN2-xTB frames: "ethanol_md",
            "ethanol_nm" or "aspirin_nm".
        val_path: File of the validation part, used whole; None draws the part from ``path``.
        test_path: File of the test part, or a list of files: errors are reported for each, under its name.
        split: "random", "time", "config_type" or "rows"; see `split_structures`.
        train: Structures for training: number, fraction, names of groups, or a file of row numbers; see
            `split_structures`.
        val: Structures for validation, as ``train``.
        test: Structures for the test, as ``train``. With a ``val_path`` and no ``test_path`` there is no test part
            unless ``test`` or ``train`` asks for one.
        published: "rmd17" or "3bpa": every file must be one of this set, whole, and with its molecule; else None.
        limit_train: Train on this many structures of the training part, or on this fraction of them (a float up to
            1.0), drawn once and nested for growing numbers; all if None. ``train`` with the split "time" takes the
            first ones, which are alike.
        limit_seed: Seed of this draw.
        keys: Name in the file by label, where it is not one that is recognised; see `read_structures`.
        units: Unit by quantity, and in ``groups`` the units of some structures; see `read_structures`.
        skip_bad: Leave frames out that cannot be read, and list them.
        e0s: Energies of free atoms: "fit", "isolated", "none", or eV by element; see `compute_statistics`.
            Structures with one atom are in no part, as no training changes their energy, which is the shift.
        replay: Structures of an earlier training in every epoch of this one, as a mapping: ``path``, and perhaps
            ``number``, how many of them, drawn by ``split_seed``, or which fraction of each epoch (0.5); ``labels``,
            those that count (all); ``keys`` and ``units`` of that file. They are in the training part alone, for its
            statistics, too.
        cutoff: Neighbour distance in Angstrom.
        batch_size: Most structures in a training batch.
        max_edges: Most edges in a training batch, so that its memory is bounded; None does not bound them.
        eval_batch_size: Most structures in a validation, test or prediction batch; fewer where the largest would have
            more than ``max_edges`` together.
        num_workers: Processes that build batches; 0 builds them in the main process.
        seed: Seed of the order of training batches; the split does not depend on it.
        split_seed: Seed of the split.
        dtype: Of positions, cells and labels but energies: "float32" or "float64", or a torch.dtype.
        cache_dir: Folder of cached neighbour lists; the user's cache folder if None.

    Raises:
        ConfigError: For an option outside its list or range.
        DataError: From `prepare_data` and `setup`, if data are missing, incomplete, corrupt or surely wrong.

    Example:
        >>> import tempfile
        >>> data = StructureDataModule("ethanol_md", split="time", cutoff=4.0, cache_dir=tempfile.mkdtemp())
        >>> data.setup()
        >>> len(data.train_set), len(data.val_set), len(data.test_set), data.labels
        (1200, 320, 400, ('energy', 'forces', 'dipole'))
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch.num_graphs, batch.energy.dtype, batch.forces.shape
        (8, torch.float64, torch.Size([72, 3]))
    """

    lone_set: StructureDataset

    def __init__(
        self,
        path: str = "ethanol_md",
        val_path: str | None = None,
        test_path: str | list[str] | None = None,
        split: str = "random",
        train: int | float | str | list[str] | None = None,
        val: int | float | str | list[str] | None = None,
        test: int | float | str | list[str] | None = None,
        published: str | None = None,
        keys: dict[str, str | None] | None = None,
        units: dict[str, Any] | None = None,
        skip_bad: bool = False,
        e0s: str | dict[str | int, float] = "fit",
        replay: dict[str, Any] | None = None,
        cutoff: float = 5.0,
        batch_size: int = 8,
        max_edges: int | None = None,
        eval_batch_size: int = 32,
        num_workers: int = 0,
        seed: int = 2026,
        split_seed: int = SPLIT_SEED,
        dtype: str | torch.dtype = "float32",
        cache_dir: str | None = None,
        limit_train: int | float | None = None,
        limit_seed: int = SPLIT_SEED,
    ) -> None:
        super().__init__()
        check_path("path", path, "a file of structures, or the name of an embedded set")
        check_choice("split", split, STRUCTURE_SPLITS)
        tests = [] if test_path is None else _read_paths(test_path)
        for name, file, part in (("val", val_path, val), ("test", test_path, test)):
            if file is not None and part is not None:
                raise ConfigError(f"{name} must be left out with {name}_path, got {part!r}. The file is used whole.")
        if val_path is not None:
            check_path("val_path", val_path, "a file, or None")
        if published is not None:
            check_choice("published", published, PUBLISHED)
        self.read_options(cutoff, batch_size, eval_batch_size, num_workers, seed, limit_train, cache_dir=cache_dir)
        self.paths = {"train": [path], "val": [] if val_path is None else [val_path], "test": tests}
        self.published = published
        self.replay = read_replay(replay)
        self.split, self.requested = split, {"train": train, "val": val, "test": test}
        self.keys, self.units, self.e0s = read_keys(keys), read_units(units), read_e0s(e0s)
        self.skip_bad = check_flag("skip_bad", skip_bad)
        self.limit_seed = check_seed("limit_seed", limit_seed)
        self.max_edges = None if max_edges is None else check_integer("max_edges", max_edges, 1)
        self.split_seed = check_seed("split_seed", split_seed)
        named = isinstance(dtype, str)
        self.dtype = _DTYPES[check_choice("dtype", dtype, _DTYPES)] if named else check_dtype("dtype", dtype)
        self.cache_dir = user_cache_dir() / "structures" if cache_dir is None else Path(cache_dir)
        self._states: list[dict[str, set[str]]] = []  # of each file

    @property
    def dataset(self) -> str:
        """The file that was read, for checkpoints and reports."""
        return str(self.paths["train"][0])

    @property
    def species(self) -> tuple[int, ...]:
        """Atomic numbers in all files, which are read for it."""
        return self.load()[0].species

    def is_drawn(self, name: str) -> bool:
        """Whether a part is drawn from ``path``, and is no file of its own."""
        return name == "train" or not self.paths[name]

    def describe(self, structures: StructureArrays, edges: Edges) -> list[str]:
        """Lines on the statistics of the training part."""
        if self.target is not None:
            return super().describe(structures, edges)
        statistics = self.statistics
        lone = np.flatnonzero(without_training(structures) & ~np.isnan(structures.energy))
        self.lone_set = StructureDataset(structures, edges, lone, self.dtype)
        mixed = ", fitted" if 0 < len(statistics.fitted) < len(statistics.species) else ""
        named = {z: f"{symbols_of([z])}: {shift:.6g} eV" for z, shift in statistics.shifts.items()}
        taken = "these are taken from them" if self.e0s == "isolated" else "e0s: isolated takes these from them"
        about = f"lone atoms: {len(lone):,}, in no part, as their energies are the shifts; {taken}"
        return [about] * bool(len(lone)) + [
            f"shifts ({self.e0s if isinstance(self.e0s, str) else 'given'}): "
            + ", ".join(text + mixed * (z in statistics.fitted) for z, text in named.items())
            + ("" if statistics.unique else "; not energies of free atoms: the data have too few compositions to tell"),
            f"scale {statistics.scale:.4g}, energies less shifts deviate by {statistics.residual_std:.4g} eV, "
            f"{statistics.mean_neighbors:.1f} neighbours within {self.cutoff:g} A",
        ]

    def read_parts(self) -> tuple[StructureArrays, dict[str, NDArray[np.int64]]]:
        """All structures that are used, one source after the other, and their rows by part."""
        readings = {name: (paths, self.keys, self.units) for name, paths in self.paths.items() if paths}
        sources = {name: self._read(*how, self.published) for name, how in readings.items()}
        if (old := self.replay) is not None:
            sources["replay"] = only_labels(self._read([old.path], old.keys, old.units, None), old.labels)
        structures, rows = StructureArrays.joined(list(sources.values())), self._split(sources)
        self.report += different_states(self._states)
        self.findings += check_physics(structures)
        self.report += [f"remark: {sentence}" for sentence in check_sizes(structures)]
        if len(unused := np.setdiff1d(np.arange(len(structures)), np.concatenate(list(rows.values())))):
            self.report.append(f"in no part: {len(unused):,} structures: {named(structures, unused)}")
        # the neighbours of the 100,000 structures of a file of which 2,000 are used would take gigabytes
        references = np.flatnonzero(without_training(structures))
        used = np.unique(np.concatenate([*rows.values(), references]))
        return structures.take(used), {name: np.searchsorted(used, part) for name, part in rows.items()}

    def _read(
        self, paths: list[str], keys: Mapping[str, str | None], units: Mapping[str, Any], published: str | None
    ) -> StructureArrays:
        """Read and join the files of one part; names of groups begin with the file's name if there are several."""
        parts = []
        for path in paths:
            if published is not None:
                find_published(published, path)
            file, units_of_file = embedded_source(path, units)
            pooling = "sum" if self.target is not None and self.target.extensive else "mean"
            content = read_file(file, keys, units_of_file, self.skip_bad, list(self.auxiliary), pooling)
            structures, self._states = content.structures, [*self._states, content.states]
            if path == self.dataset and (missing := self.auxiliary.keys() - structures.auxiliary.keys()):
                raise ConfigError(
                    f"auxiliary must be names of labels in {path} ({', '.join(content.names)}), got "
                    f"{', '.join(sorted(missing))}. Correct data.auxiliary."
                )
            if published is not None:
                check_published(published, path, structures)
            if len(paths) > 1:
                names = [f"{Path(path).stem} {group}".strip() for group in structures.config_type.tolist()]
                structures = dataclasses.replace(structures, config_type=np.array(names))
            parts.append(structures)
            self.report += content.lines()
        return StructureArrays.joined(parts)

    def _usable(self, source: StructureArrays) -> NDArray[np.bool_]:
        """Whether a structure may be in a part, `[N]`."""
        return ~without_training(source)

    def _split(self, sources: Mapping[str, StructureArrays]) -> dict[str, NDArray[np.int64]]:
        """Rows of the training, validation and test part, counted over the joined sources."""
        start, rows_of, usable = 0, {}, {}
        for name, source in sources.items():
            rows_of[name] = start + np.arange(len(source))
            usable[name] = self._usable(source)
            start += len(source)
        requested = self.requested | {name: 0 for name in ("val", "test") if name in rows_of}
        if "val" in rows_of and requested["train"] is None and requested["test"] is None:
            requested["test"] = 0
        # files count all rows of the source; numbers are of those that can be used
        drawn_from = rows_of["train"] if self.split == "rows" else rows_of["train"][usable["train"]]
        if self.split == "rows" and not np.array_equal(sources["train"].idx, np.arange(len(sources["train"]))):
            raise ConfigError(
                f"split must count the frames of one whole file where it is 'rows', got {self.dataset} of which frames "
                "are left out, or several files. Name one file without an index, and set skip_bad to false."
            )
        groups = sources["train"].config_type[drawn_from]
        drawn = split_structures(self.split, groups, seed=self.split_seed, **requested)
        parts = {name: drawn_from[rows] for name, rows in zip(PARTS, drawn, strict=True)}
        parts = {name: rows[usable["train"][rows]] for name, rows in parts.items()}
        parts |= {name: rows_of[name][usable[name]] for name in ("val", "test") if name in rows_of}
        parts["train"] = limited(parts["train"], self.limit_train, self.limit_seed)
        self.num_new = len(parts["train"])
        if self.replay is not None:
            rows = np.flatnonzero(usable["replay"])
            check_energies(sources["train"].take(parts["train"]), sources["replay"].take(rows))
            again = rows[replayed(self.replay, sources["replay"].take(rows), self.num_new, self.split_seed)]
            self.report.append(f"replay: {len(again):,} structures of {self.replay.path} in every epoch")
            parts["train"] = np.concatenate([parts["train"], rows_of["replay"][again]])
        return parts


def _read_paths(paths: Any) -> list[str]:
    """Files of the test part, each of another name."""
    what, fix = "a file, a list of files, or None", "Pass ['a.xyz', 'b.xyz']."
    listed = [paths] if isinstance(paths, (str, Path)) else check_items("test_path", paths, what, fix)
    files = [check_path("test_path", path, what) for path in listed]
    if not files or len({Path(file).stem for file in files}) < len(files):
        raise ConfigError(
            f"test_path must be files of different names, which errors are reported under, got {files}. Rename them."
        )
    return files


def keys_of(target: str) -> dict[str, str | None]:
    """Names in a file of which the property is read, and no other label."""
    return {label: None for label in KEYS if label != "config_type"} | {"y": target}


class PropertyDataModule(StructureDataModule):
    """Own molecules with one property, which is the label `y` `[G]` float64 of batches.

    All else is as of :class:`StructureDataModule`. Molecules without the label are in no part; a warning names their
    rows.

    Args:
        path: A file that ASE reads, such as extended XYZ or a database.
        target: Name of the property in the file, of which each molecule has one number.
        unit: Unit of these numbers, which stay as they are; reports name it.
        extensive: Whether the property grows with the molecule: atoms are added up, and each species has a shift.
            Otherwise atoms are averaged.
        auxiliary: Weights in the loss of further labels by name in the file, which the network learns beside the
            target: one number for each atom, 3 numbers, which are a vector, or one number of the molecule, which is
            extensive where the target is. Molecules without the target are in the training part with these labels
            alone.
        **options: Of :class:`StructureDataModule`; `units` of positions alone.

    Raises:
        ConfigError: For an option outside its list or range.
        DataError: From `prepare_data` and `setup`: no such name, a value that is not one finite number, a periodic
            structure, or as :class:`StructureDataModule`.

    Example:
        >>> import tempfile
        >>> from ase import Atoms
        >>> from ase.io import write
        >>> folder = tempfile.mkdtemp()
        >>> frames = [Atoms("H2", [[0, 0, 0], [0, 0, 0.7 + 0.01 * n]], info={"gap": 9.0 - n}) for n in range(10)]
        >>> write(f"{folder}/pairs.xyz", frames)
        >>> data = PropertyDataModule(f"{folder}/pairs.xyz", target="gap", unit="eV", cache_dir=folder)
        >>> data.setup()
        >>> len(data.train_set), data.target.unit, next(iter(data.test_dataloader())).y.tolist()
        (8, 'eV', [5.0])
    """

    target: Target

    def __init__(
        self,
        path: str,
        target: str | list[str],
        unit: str = NO_UNIT,
        extensive: bool = False,
        auxiliary: dict[str, float] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(target, str) or not target:
            raise ConfigError(
                f"target must be the name of one property in the file, got {got(target)}. Train one run for each "
                "property, each with a name of its own."
            )
        check_type("unit", unit, str, "a text", "Name the unit of the file, such as eV.")
        self.target = own_target(target, unit, check_flag("extensive", extensive))
        self.auxiliary = read_auxiliary(auxiliary, target)
        super().__init__(path, keys=keys_of(target), e0s="fit", published=None, replay=None, **options)

    def _usable(self, source: StructureArrays) -> NDArray[np.bool_]:
        periodic = np.flatnonzero(source.pbc.any(axis=1))
        fix = 'set pbc="F F F" in the file where a molecule is in a box'
        source.refuse("molecules without a period", periodic, fix)
        labelled = ~np.isnan(source.y)
        if not labelled.all():
            rows = few([str(row) for row in source.idx[~labelled]])
            trained = " but for the training on other labels" * bool(self.auxiliary)
            warnings.warn(
                f"{source.source}: {int((~labelled).sum())} of {len(labelled)} structures have no {self.target.name!r} "
                f"and are left out{trained}, rows {rows}",
                EqlayersWarning,
                stacklevel=2,
            )
        return labelled

    def _split(self, sources: Mapping[str, StructureArrays]) -> dict[str, NDArray[np.int64]]:
        """Parts of the molecules with the target, and behind the training part those with further labels alone."""
        parts, first = super()._split(sources), sources["train"]
        rows = [count for key, count in first.label_rows().items() if key in first.auxiliaries]
        more = np.flatnonzero(np.isnan(first.y) & (np.sum(rows, axis=0) > 0)) if rows else np.empty(0, np.int64)
        if len(more):
            self.report.append(f"without {self.target.name}: {len(more):,} molecules are trained on further labels")
            parts["train"] = np.concatenate([parts["train"], more])
            self.num_new = len(parts["train"])
        return parts
