"""Linear maps of features."""
