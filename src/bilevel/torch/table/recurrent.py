"""Recurrent layers as `lax.scan`."""
