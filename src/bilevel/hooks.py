"""`bilevel.loop.hooks` under its public name, for `from bilevel.hooks import Stop`."""

from bilevel.loop.hooks import *  # noqa: F403
