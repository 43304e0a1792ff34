"""`eqlayers bench first-gpu`: stages for the first minutes on a GPU, and the bounds of printed kernels."""
