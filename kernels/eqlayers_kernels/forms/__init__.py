"""Forms: programs of products, formulas, and the forms that are their derivatives. They know nothing of irreps."""
