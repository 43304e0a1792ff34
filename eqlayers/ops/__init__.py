"""The products of the family: one table of rows, and what follows from their channel einsums."""

from .channels import Channels as Channels
from .table import PRODUCTS, Row, channels_of, register_product

__all__ = ["PRODUCTS", "Channels", "Row", "channels_of", "register_product"]
