"""Networks of other packages with random weights, and structures for them, for tests and benchmarks."""
