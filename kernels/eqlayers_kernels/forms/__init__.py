"""Forms: products and formulas as data, and their derivatives as forms. Forms have columns and channels, no irreps."""
