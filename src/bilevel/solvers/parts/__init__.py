"""What several algorithms are made of."""
