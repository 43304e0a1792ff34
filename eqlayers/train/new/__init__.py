"""Generate a commented configuration of `eqlayers fit` from a file of structures."""
