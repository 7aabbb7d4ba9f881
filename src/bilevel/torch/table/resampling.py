"""Interpolation, padding and rearrangement of images."""
