"""What the library was measured with: the experiments of the paper, and the comparison of all methods."""
