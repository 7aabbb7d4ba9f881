"""Tests of the torch front; they are left out where torch is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*"]
