"""Runs on disk: the contents of a checkpoint, its folder, and how a run resumes from it."""
