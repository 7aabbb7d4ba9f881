"""Recovery after a run diverges: the last finite state, and smaller step sizes."""
