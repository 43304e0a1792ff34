"""Chemical elements: symbols, atomic numbers, radii, and parsing of lists and tables of elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..core.checks import check_integer, check_items, check_type, got, is_integer
from ..core.errors import ConfigError

# fmt: off
#: Symbols of the elements 1 to 118.
SYMBOLS = (
    "H", "He", "Li", "Be", "B", "C", "N", "O", "F", "Ne", "Na", "Mg", "Al", "Si", "P", "S", "Cl", "Ar", "K", "Ca",
    "Sc", "Ti", "V", "Cr", "Mn", "Fe", "Co", "Ni", "Cu", "Zn", "Ga", "Ge", "As", "Se", "Br", "Kr", "Rb", "Sr", "Y",
    "Zr", "Nb", "Mo", "Tc", "Ru", "Rh", "Pd", "Ag", "Cd", "In", "Sn", "Sb", "Te", "I", "Xe", "Cs", "Ba", "La", "Ce",
    "Pr", "Nd", "Pm", "Sm", "Eu", "Gd", "Tb", "Dy", "Ho", "Er", "Tm", "Yb", "Lu", "Hf", "Ta", "W", "Re", "Os", "Ir",
    "Pt", "Au", "Hg", "Tl", "Pb", "Bi", "Po", "At", "Rn", "Fr", "Ra", "Ac", "Th", "Pa", "U", "Np", "Pu", "Am", "Cm",
    "Bk", "Cf", "Es", "Fm", "Md", "No", "Lr", "Rf", "Db", "Sg", "Bh", "Hs", "Mt", "Ds", "Rg", "Cn", "Nh", "Fl", "Mc",
    "Lv", "Ts", "Og",
)
#: Covalent radii of H to Cm in Angstrom: Cordero et al. 2008, doi:10.1039/b801115j, table 2; carbon sp3, low spin.
COVALENT_RADII = (
    0.31, 0.28, 1.28, 0.96, 0.84, 0.76, 0.71, 0.66, 0.57, 0.58, 1.66, 1.41, 1.21, 1.11, 1.07, 1.05, 1.02, 1.06, 2.03,
    1.76, 1.70, 1.60, 1.53, 1.39, 1.39, 1.32, 1.26, 1.24, 1.32, 1.22, 1.22, 1.20, 1.19, 1.20, 1.20, 1.16, 2.20, 1.95,
    1.90, 1.75, 1.64, 1.54, 1.47, 1.46, 1.42, 1.39, 1.45, 1.44, 1.42, 1.39, 1.39, 1.38, 1.39, 1.40, 2.44, 2.15, 2.07,
    2.04, 2.03, 2.01, 1.99, 1.98, 1.98, 1.96, 1.94, 1.92, 1.92, 1.89, 1.90, 1.87, 1.87, 1.75, 1.70, 1.62, 1.51, 1.44,
    1.41, 1.36, 1.36, 1.32, 1.45, 1.46, 1.48, 1.40, 1.50, 1.50, 2.60, 2.21, 2.15, 2.06, 2.00, 1.96, 1.90, 1.87, 1.80,
    1.69,
)
# fmt: on
_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS, 1)}
_FIX = "Write a symbol such as 'O', or an atomic number such as 8."


def element(name: str, value: Any) -> int:
    """Parse a chemical symbol or atomic number into an atomic number."""
    fix, number = _FIX, 0
    if isinstance(value, str):
        word = value.strip()
        number = _NUMBERS.get(word, int(word) if word.isascii() and word.isdecimal() else 0)
        if word.capitalize() in _NUMBERS:
            fix = f"Write {word.capitalize()!r}."
    elif value is False:
        fix = "In YAML the symbol No of nobelium needs quotes: 'No'."
    elif is_integer(value):
        number = int(value)
    if not 1 <= number <= len(SYMBOLS):
        what = f"{name} must be chemical symbols or atomic numbers from 1 to {len(SYMBOLS)}"
        raise ConfigError(f"{what}, got {got(value)}. {fix}")
    return number


def read_species(species: Any) -> tuple[int, ...]:
    """Parse a list of symbols or atomic numbers into atomic numbers; raise if one occurs twice."""
    fix = "List each element of the data once."
    listed = check_items("species", species, "a list of chemical symbols or atomic numbers", fix)
    numbers = tuple(element("species", item) for item in listed)
    twice = sorted({z for z in numbers if numbers.count(z) > 1})
    if not numbers or twice:
        problem = f"{symbols_of(twice)} more than once" if numbers else "none"
        raise ConfigError(f"species must be different elements, at least one, got {problem}. {fix}")
    return numbers


def by_element(name: str, values: Any, what: str) -> dict[int, Any]:
    """Convert the keys of a mapping, symbols or atomic numbers, to atomic numbers."""
    expected = f"a mapping from chemical symbol or atomic number to {what}"
    checked = check_type(name, values, Mapping, expected, "Pass a dict such as {'H': 1.0, 'O': 2.0}.")
    by_number: dict[int, Any] = {}
    for key, value in checked.items():
        number = element(name, key)
        if number in by_number:
            raise ConfigError(
                f"{name} must name each element once, got {symbols_of([number])} more than once. Keep one of them."
            )
        by_number[number] = value
    return by_number


def symbols_of(numbers: Iterable[int]) -> str:
    """Format atomic numbers as a comma-separated list of symbols, for messages."""
    return ", ".join(SYMBOLS[z - 1] if 1 <= z <= len(SYMBOLS) else str(z) for z in map(int, numbers))


def covalent_radius(z: int) -> float:
    """The covalent radius of an element, in Angstrom."""
    what = f"an element with a covalent radius, 1 to {len(COVALENT_RADII)}"
    if check_integer("z", z, 1, what="an atomic number") > len(COVALENT_RADII):
        raise ConfigError(f"z must be {what}, got {z}. Leave out what needs it.")
    return COVALENT_RADII[z - 1]
