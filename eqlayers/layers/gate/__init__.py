"""Gates and other activations."""
