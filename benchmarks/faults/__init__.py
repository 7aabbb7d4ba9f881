"""Faults injected into real runs in processes of their own: what survives, what is lost, what is said."""
