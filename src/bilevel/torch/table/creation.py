"""New tensors and conversions of type."""
