"""Functions of tensors as graphs of operators with free sizes, and programs that run such graphs."""
