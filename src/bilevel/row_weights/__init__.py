"""Weights for the rows of a table with wrong labels, learned from a few trusted rows."""
