"""Applications, ready to run and to adapt: `bilevel examples` lists and runs them."""

from importlib import import_module

from bilevel.applications.base import Application as Application, Outcome as Outcome

MODULES = {  # by the name on the command line; each module has an APPLICATION
    "weight-decay": "weight_decay",
    "sparse-penalties": "sparse_penalties",
    "reweighting": "reweighting",
    "feature-learning": "feature_learning",
    "few-shot-sinusoids": "few_shot_sinusoids",
    "few-shot-omniglot": "few_shot_omniglot",
    "architecture-search": "architecture_search",
    "reward-shaping": "reward_shaping",
    "policy-game": "policy_game",
    "distillation": "distillation",
}


def application(name: str) -> Application:
    """Return the application of that name; its module is loaded now."""
    if name not in MODULES:
        raise ValueError(f"there is no application {name!r}: take one of {', '.join(MODULES)}")
    return import_module(f"bilevel.applications.{MODULES[name]}").APPLICATION
