"""Data of a run: streams that live on the device, and Python loaders."""
