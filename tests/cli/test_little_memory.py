"""A limit on memory under which JAX may end the process without a message."""

import resource
import subprocess
import sys

import pytest

import bilevel_command

CERTIFY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (10**9, resource.RLIM_INFINITY))
sys.argv = ["bilevel", "certify", "--mu", "0.1", "--L", "1", "--M", "0.1", "--rho", "0.1"]
from bilevel_command import main
main()
"""


@pytest.mark.parametrize(
    ("limit", "warned"), [(10**9, True), (2**40, False), (resource.RLIM_INFINITY, False)]
)
def test_only_a_low_limit_is_reported(limit, warned, monkeypatch, capsys):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, resource.RLIM_INFINITY))
    bilevel_command._warn_of_little_memory()
    words = capsys.readouterr().err
    assert ("limits a program to 1.0 GB" in words and "ulimit -v unlimited" in words) == warned
    assert bool(words) == warned


@pytest.mark.slow
def test_a_command_that_needs_little_still_works():
    done = subprocess.run(
        [sys.executable, "-c", CERTIFY], capture_output=True, text=True, timeout=100, check=True
    )
    assert "limits a program to 1.0 GB" in done.stderr
    assert "κ" in done.stdout or "kappa" in done.stdout
