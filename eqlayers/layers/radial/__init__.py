"""Functions of distances."""
