"""Losses that torch keeps as operations."""
