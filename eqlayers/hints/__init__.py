"""Answers to names and arguments that people guess: the right name in place of an error of Python."""
