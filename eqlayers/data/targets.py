"""The 19 targets of QM9, one row each: unit, extensivity, and where the number stands in every source.

Inside models energies are in eV; they are reported in meV, as the field's tables do. The order of `TARGETS` is the
order of the columns of `torch_geometric.datasets.QM9`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.checks import check_choice, check_type

HARTREE_TO_EV = 27.211386245988  # CODATA 2018
# QM9's table of atomisation energies was itself made from Hartree with 627.509 kcal/mol; undoing the same number gives
# back the exact difference of total energies (CH4: (-40.47893 + 39.847864) Eh * 627.509 = -395.999594594 kcal/mol).
KCAL_PER_MOL_TO_EV = HARTREE_TO_EV / 627.509


@dataclass(frozen=True)
class Target:
    """One property to predict.

    Attributes:
        name: Name as in `torch_geometric.datasets.QM9`'s documentation.
        unit: Unit of `y` inside models.
        report_unit: Unit of errors in tables and metric names.
        report_factor: Multiplies a value in `unit` to give `report_unit`.
        extensive: Whether the value grows with the molecule: sum pooling and per-species shifts; else mean pooling.
        qm9_index: Column in `torch_geometric.datasets.QM9`'s `y`.
        raw_unit: Unit in QM9's own table (`gdb9.sdf.csv`) and in the embedded set.
        raw_factor: Multiplies a raw value to give `unit`.
        mini_key: Key of the embedded set, or None where it has no such column.
        about: What it is.
    """

    name: str
    unit: str
    report_unit: str
    report_factor: float
    extensive: bool
    qm9_index: int
    raw_unit: str
    raw_factor: float
    mini_key: str | None
    about: str

    @property
    def raw_column(self) -> int:
        """Column of the value in `gdb9.sdf.csv`, counted after `mol_id`: that table has A, B, C first."""
        return (self.qm9_index + 3) % 19


# raw unit -> (unit inside models, factor, unit of reports, factor)
_UNITS: dict[str, tuple[str, float, str, float]] = {
    "Hartree": ("eV", HARTREE_TO_EV, "meV", 1000.0),
    "kcal/mol": ("eV", KCAL_PER_MOL_TO_EV, "meV", 1000.0),
    "D": ("D", 1.0, "D", 1.0),
    "a0^3": ("a0^3", 1.0, "a0^3", 1.0),
    "a0^2": ("a0^2", 1.0, "a0^2", 1.0),
    "cal/(mol K)": ("cal/(mol K)", 1.0, "cal/(mol K)", 1.0),
    "GHz": ("GHz", 1.0, "GHz", 1.0),
}

# name, raw unit, extensive, in the embedded set, about
_ROWS: tuple[tuple[str, str, bool, bool, str], ...] = (
    ("mu", "D", False, True, "norm of the dipole moment"),
    ("alpha", "a0^3", True, True, "isotropic polarisability"),
    ("homo", "Hartree", False, True, "energy of the highest occupied molecular orbital"),
    ("lumo", "Hartree", False, True, "energy of the lowest unoccupied molecular orbital"),
    ("gap", "Hartree", False, True, "LUMO energy minus HOMO energy"),
    ("r2", "a0^2", True, False, "electronic spatial extent <R^2>; grows faster than the number of atoms"),
    ("zpve", "Hartree", True, True, "zero-point vibrational energy"),
    ("U0", "Hartree", True, True, "internal energy at 0 K"),
    ("U", "Hartree", True, True, "internal energy at 298.15 K"),
    ("H", "Hartree", True, True, "enthalpy at 298.15 K"),
    ("G", "Hartree", True, True, "free energy at 298.15 K"),
    ("Cv", "cal/(mol K)", True, True, "heat capacity at constant volume and 298.15 K"),
    ("U0_atom", "kcal/mol", True, False, "atomisation energy at 0 K"),
    ("U_atom", "kcal/mol", True, False, "atomisation energy at 298.15 K"),
    ("H_atom", "kcal/mol", True, False, "atomisation enthalpy at 298.15 K"),
    ("G_atom", "kcal/mol", True, False, "atomisation free energy at 298.15 K"),
    ("A", "GHz", False, True, "largest rotational constant (0 for linear molecules)"),
    ("B", "GHz", False, True, "middle rotational constant"),
    ("C", "GHz", False, True, "smallest rotational constant"),
)


def _row(index: int, name: str, raw_unit: str, extensive: bool, in_mini: bool, about: str) -> Target:
    unit, raw_factor, report_unit, report_factor = _UNITS[raw_unit]
    mini_key = name if in_mini else None
    return Target(name, unit, report_unit, report_factor, extensive, index, raw_unit, raw_factor, mini_key, about)


TARGETS: dict[str, Target] = {row[0]: _row(index, *row) for index, row in enumerate(_ROWS)}


#: Unit of a property without a unit in the configuration.
NO_UNIT = "unit of the file"


def own_target(name: str, unit: str, extensive: bool) -> Target:
    """The target of a property in the user's file; its values are not converted.

    Example:
        >>> own_target("gap", "eV", extensive=False).report_unit
        'eV'
    """
    about = "label of the molecules"
    return Target(name, unit, unit, 1.0, extensive, -1, unit, 1.0, None, about)


def get_target(name: str) -> Target:
    """Look up a target by name.

    Args:
        name: One of the keys of `TARGETS`.

    Returns:
        The row of the table.

    Raises:
        ConfigError: For an unknown name; the message lists the known ones.

    Example:
        >>> get_target("U0").unit, get_target("U0").report_unit, get_target("U0").extensive
        ('eV', 'meV', True)
    """
    return TARGETS[check_choice("target", name, TARGETS)]


def check_target(target: Any) -> Target:
    """Return ``target`` if it is a row of the table, else raise ConfigError."""
    return check_type("target", target, Target, "a Target", "Take one from get_target(name).")
