"""One list of layers, and the properties that each must have."""
