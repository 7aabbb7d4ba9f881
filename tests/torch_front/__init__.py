"""Tests of the torch front, and their helpers."""
