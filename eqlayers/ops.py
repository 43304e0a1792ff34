"""The products of the family: one table of rows, and what follows from their channel einsums."""

from .sparse import PRODUCTS, Channels, Row, channels_of, register_product

__all__ = ["PRODUCTS", "Channels", "Row", "channels_of", "register_product"]
