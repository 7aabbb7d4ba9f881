"""Bounds of a run from its constants: the paper's theorems, the earlier analysis and exact gain."""
