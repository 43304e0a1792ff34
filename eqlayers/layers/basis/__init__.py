"""Changes of basis of features."""
