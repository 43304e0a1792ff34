"""A regular package: mace-torch installs a package `tests`, which would hide a folder without this file."""
