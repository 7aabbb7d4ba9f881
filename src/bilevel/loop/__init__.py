"""The loop around the solvers: one pure `advance`, and what drives it."""
