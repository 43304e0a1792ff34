"""Guards of a rearrangement: what is printed, stored and pickled stays as it was."""
