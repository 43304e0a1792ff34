"""The command `eqlayers bench run`: tensor products and convolutions, compared with other packages."""
