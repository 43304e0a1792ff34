"""State dicts and TorchScript as e3nn has them."""
