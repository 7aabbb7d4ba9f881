"""Laboratory: the experiments of the paper, and the comparison of all methods."""
