"""What a run is promised, from the constants alone: the paper's theorems, the earlier analysis and exact gain."""
