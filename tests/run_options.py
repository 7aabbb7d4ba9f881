"""The options of `bl.run` in one dict, as tests that pass many of them have it."""

from dataclasses import fields
from typing import Any

import bilevel as bl

NAMES = {field.name for field in fields(bl.RunOptions)}


def with_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of `bl.run`, with those that `bl.RunOptions` has packed into `options`."""
    rest = {name: value for name, value in given.items() if name in NAMES}
    own = {name: value for name, value in given.items() if name not in NAMES}
    return own | {"options": bl.RunOptions(**rest)} if rest else own
