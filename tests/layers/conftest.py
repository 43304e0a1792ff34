"""Layers beside their e3nn twins."""

from tests.twins import twins

__all__ = ["twins"]
