"""Names of labels in files of structures, and facts about labels that a saved potential keeps."""

from __future__ import annotations

#: ASE's name of the energy whose slopes the forces are, where electrons are smeared over levels.
FREE = "free_energy"
#: Names under which files of structures hold labels, by label.
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
#: Facts of a saved potential: names of labels in the files that it was trained on, and their units, where given.
LABEL_NAMES, LABEL_UNITS = "names of labels", "units of labels"
