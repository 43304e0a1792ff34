"""Programs and formulas as C."""
