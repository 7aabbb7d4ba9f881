"""Tables with wrong labels: one weight per row, learned from a few rows with trusted labels."""
