"""Error messages for unknown names and arguments, with suggestions."""
