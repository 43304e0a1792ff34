"""The command `eqlayers bench first-gpu`: tests and benchmarks for a new GPU, in stages."""
