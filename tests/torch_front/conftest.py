"""Tests of the torch front; they are left out where torch is not installed."""

from importlib.util import find_spec
from pathlib import Path

import jaxtyping
import pytest

HAS_TORCH = find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else ["*"]

if HAS_TORCH:
    import torch

    torch.set_num_threads(1)  # every worker of the tests has one core


@pytest.fixture
def lines_of_users(monkeypatch):
    """Hide the frames of run-time checks, which only tests have, from the lines in messages."""
    from bilevel.torch import errors

    checks = str(Path(__file__).parents[1] / "annotations.py"), str(Path(jaxtyping.__file__).parent)
    monkeypatch.setattr("bilevel.torch.errors.HIDDEN", (*errors.HIDDEN, *checks))
