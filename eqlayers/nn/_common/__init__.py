"""What several layers share, and nobody else: weights, states, copies, TorchScript, pictures."""
