"""Hints for names and arguments that do not exist: error messages that name the right one."""
