"""Experiments of the paper, and the comparison of all methods."""
