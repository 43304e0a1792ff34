"""The base of every layer: descriptions, the operator, backends, graphs, checks and errors."""
