"""One small problem, solved with every library that people come from: a file for each."""
