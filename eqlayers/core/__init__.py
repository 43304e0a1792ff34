"""The base of all layers: forms under keys, the torch operator, backends, graphs, checks and errors."""
