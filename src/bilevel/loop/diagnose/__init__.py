"""Reasons why a run diverged or stopped moving, and findings about a healthy run."""
