"""The Lightning data module of properties of own molecules, which are structures with one label of any name."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eqlayers.atoms.labels import KEYS
from eqlayers.core.files.read_write import few
from eqlayers.data.structuremodule import StructureDataModule
from eqlayers.data.structures import StructureArrays
from eqlayers.data.targets import NO_UNIT, Target, own_target

from ..core.checks import check_flag, check_type, got
from ..core.errors import ConfigError, EqlayersWarning


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
        self, path: str, target: str | list[str], unit: str = NO_UNIT, extensive: bool = False, **options: Any
    ) -> None:
        if not isinstance(target, str) or not target:
            raise ConfigError(
                f"target must be the name of one property in the file, got {got(target)}. Train one run for each "
                "property, each with a name of its own."
            )
        check_type("unit", unit, str, "a text", "Name the unit of the file, such as eV.")
        self.target = own_target(target, unit, check_flag("extensive", extensive))
        super().__init__(path, keys=keys_of(target), e0s="fit", published=None, replay=None, **options)

    def _usable(self, source: StructureArrays) -> NDArray[np.bool_]:
        periodic = np.flatnonzero(source.pbc.any(axis=1))
        fix = 'set pbc="F F F" in the file where a molecule is in a box'
        source.refuse("molecules without a period", periodic, fix)
        labelled = ~np.isnan(source.y)
        if not labelled.all():
            rows = few([str(row) for row in source.idx[~labelled]])
            warnings.warn(
                f"{source.source}: {int((~labelled).sum())} of {len(labelled)} structures have no {self.target.name!r} "
                f"and are left out, rows {rows}",
                EqlayersWarning,
                stacklevel=2,
            )
        return labelled
