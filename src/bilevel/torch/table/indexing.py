"""Indexing, scattering, sorting and embedding."""
