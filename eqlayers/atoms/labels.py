"""Names of labels in files of structures, and keys of facts about labels in saved potentials."""

from __future__ import annotations

#: ASE's name of the electronic free energy, whose derivatives are the forces if occupations are smeared.
FREE = "free_energy"
#: Label -> recognised names in files of structures.
KEYS: dict[str, tuple[str, ...]] = {
    "energy": ("energy", "Energy", "REF_energy", "dft_energy", "DFT_energy", "TotEnergy", "energies", "E"),
    "forces": ("forces", "force", "Forces", "REF_forces", "dft_forces", "dft_force", "DFT_forces", "F"),
    "stress": ("stress", "REF_stress", "dft_stress", "DFT_stress"),
    "virial": ("virial", "virials", "REF_virial", "REF_virials", "dft_virial", "dft_virials", "DFT_virial"),
    "dipole": ("dipole", "REF_dipole", "dft_dipole", "DFT_dipole"),
    "polarizability": ("polarizability", "REF_polarizability", "dft_polarizability", "DFT_polarizability"),
    "y": (),  # the property that the user names
    "config_type": ("config_type",),
}
#: Keys of facts of a saved potential: names and units of labels in its training files.
LABEL_NAMES, LABEL_UNITS = "names of labels", "units of labels"
