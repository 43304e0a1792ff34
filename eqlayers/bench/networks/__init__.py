"""The commands `eqlayers bench networks` and `bench accelerate`: whole networks in their packages and here."""
