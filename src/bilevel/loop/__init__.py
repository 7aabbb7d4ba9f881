"""Loop around the solvers: a pure `advance` and its driver."""
