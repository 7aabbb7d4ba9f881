"""A parameter that only the whole suite tries: `@pytest.mark.parametrize("steps", [3, slow(300)])`."""

from functools import partial

import pytest

slow = partial(pytest.param, marks=pytest.mark.slow)
