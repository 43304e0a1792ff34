"""Code that only layers share: weights, states, copies, TorchScript, pictures."""
