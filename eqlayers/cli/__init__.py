"""The command `eqlayers`: its parser, its help, and what it shows while it works."""
