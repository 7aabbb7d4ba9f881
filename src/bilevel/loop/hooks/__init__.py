"""Hooks of a run: each sees an event between chunks, and may ask the run to end."""
