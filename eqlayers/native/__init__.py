"""Potentials as native programs: one C program from a trace, which needs neither Python nor torch."""
