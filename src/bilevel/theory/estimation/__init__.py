"""Estimated constants and step sizes for problems with unknown constants."""
