"""Atoms: elements, units, constraints, labels and files of structures, and neighbours in periodic cells."""
