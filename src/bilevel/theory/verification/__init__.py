"""Checks of every lemma and theorem on a run of the real solver."""
