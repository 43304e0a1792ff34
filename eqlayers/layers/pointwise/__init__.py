"""Formulas evaluated row by row."""
