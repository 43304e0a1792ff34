"""Parts left out in training."""
