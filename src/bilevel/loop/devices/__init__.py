"""Runs on several devices or processes, and state that waits in host memory."""
