"""`eqlayers bench run`: tensor products and convolutions beside other packages."""
