"""`eqlayers bench networks` and `bench accelerate`: whole networks, as their packages run them and as this one does."""
