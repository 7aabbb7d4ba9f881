"""Applications, ready to run and to adapt: `bilevel examples` lists and runs them."""

from importlib import import_module

from bilevel.applications.base import Application as Application, Outcome as Outcome

# On the command line; each module has an APPLICATION.
NAMES = """
weight-decay sparse-penalties reweighting feature-learning few-shot-sinusoids few-shot-omniglot architecture-search
reward-shaping policy-game distillation
"""
MODULES = {name: name.replace("-", "_") for name in NAMES.split()}


def application(name: str) -> Application:
    """Return the application of that name; its module is loaded now."""
    if name not in MODULES:
        raise ValueError(f"there is no application {name!r}: take one of {', '.join(MODULES)}")
    return import_module(f"bilevel.applications.{MODULES[name]}").APPLICATION
