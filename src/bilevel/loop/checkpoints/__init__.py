"""Runs on disk: what a checkpoint holds, the folder it lies in, and how a run goes on from there."""
