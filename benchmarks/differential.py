"""Compare two versions of the library on random programs, bit for bit.

    python benchmarks/differential.py --save old.json            # with the old version installed
    python benchmarks/differential.py old.json                   # with the new one

A program is a solver with random options, inner and outer rules, a problem, data, hooks, recorded values, a way to
stop, a way to resume (in memory, from disk, not at all), one run or a sweep, one device or two. It follows from its
number only. Of each end, x, y, v, the model's state, the trace, the number of steps and the status code are compared.
A program that a version refuses is compared by the type of the error.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl

STEPS = 24


def solver_named(name):
    """Return the factory `name`, which earlier versions keep at top level."""
    found = getattr(bl.solvers, name, None)
    return found if callable(found) else getattr(bl, name)  # `bl.solvers.aid` was a module


# Options beside the step sizes, one of them drawn for each program. "adjoint" is added where the factory has it.
SOLVERS = {
    "aid": [
        {},
        {"inner_steps": 3},
        {"inner_steps": 2, "batches": "independent"},
        {"adjoint": "cg"},
        {"adjoint": "neumann"},
    ],
    "itd": [
        {},
        {"inner_steps": 4},
        {"inner_steps": 4, "truncate": 2},
        {"inner_steps": 4, "checkpoint_every": 2},
    ],
    "soba": [{}, {"batches": "independent"}],
    "saba": [{}],
    "stocbio": [{}, {"products": 3, "inner_steps": 2}],
    "hoag": [{}],
    "rtho": [{}, {"inner_steps": 2}],
    "f2sa": [{"penalty": 5.0}, {"penalty": 5.0, "inner_steps": 2}],
    "f2sa_p": [{"penalty": 5.0}],
    "f3sa": [{"penalty": 5.0}],
    "f2ba": [{"penalty": 5.0}],
    "acc_f2ba": [{"penalty": 5.0, "radius": 1.0}],
    "maml": [{"inner_steps": 2}],
    "fomaml": [{"inner_steps": 2}],
    "imaml": [{"strength": 1.0}],
    "reptile": [{"inner_steps": 2}],
    "tuning_free": [{}],
    "bda": [{"inner_steps": 3}],
    "bome": [{}],
    "darts": [{"xi": 0.1}],
    "darts_first_order": [{}],
    "forward_itd": [{"inner_steps": 2}],
    "fsla": [{}],
    "g_pbgd": [{"penalty": 2.0}],
    "v_pbgd": [{"penalty": 2.0}],
    "iaptt": [{"inner_steps": 3}],
    "meha": [{"penalty": 2.0, "proximal": 0.5}],
    "mrbo": [{}],
    "pzobo": [{"inner_steps": 2}],
    "qnbo": [{}],
    "sama": [{}],
    "srba": [{}],
    "sustain": [{}],
    "vrbo": [{"period": 3}],
    "s_tfbo": [{}],
    "d_tfbo": [{}],
}
META = ("maml", "fomaml", "imaml", "reptile")
COMMON = ("aid", "itd", "soba", "stocbio", "f2sa", "hoag")  # half of the programs use one of these

RULES = {
    "number": lambda size: size,
    "sgd": optax.sgd,
    "schedule": lambda size: optax.sgd(optax.exponential_decay(size, 10, 0.9)),
    "momentum": lambda size: optax.sgd(size, momentum=0.5),
    "adam": lambda size: optax.adam(size),
    "clipped": lambda size: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(size)),
    "ball": lambda size: bl.projected(size, lambda z: optax.projections.projection_l2_ball(z, 0.7)),
}


def quadratic(rng, kind):
    dimension = rng.choice([1, 2, 5])
    numbers = np.random.default_rng(rng.randrange(2**32))
    half = numbers.normal(size=(dimension, dimension))
    h = jnp.asarray(half @ half.T / dimension + np.eye(dimension))
    c, target = (
        jnp.asarray(numbers.normal(size=(dimension, dimension))),
        jnp.asarray(numbers.normal(size=dimension)),
    )
    problem = bl.Problem(
        inner=lambda x, y: 0.5 * y @ h @ y - y @ c @ x,
        outer=lambda x, y: 0.5 * jnp.sum((y - target) ** 2) + 0.05 * jnp.sum(x**2),
    )
    return problem, jnp.ones(dimension), jnp.zeros(dimension), None, None


def ridge(rng, kind):
    numbers = np.random.default_rng(rng.randrange(2**32))
    a, b = numbers.normal(size=(16, 3)), numbers.normal(size=16)

    def inner(x, y, batch):
        a, b = batch
        return (
            0.5 * jnp.mean((a @ y["w"] + y["b"] - b) ** 2)
            + 0.5 * jnp.sum(jnp.exp(x) * y["w"] ** 2)
            + 0.1 * y["b"] ** 2
        )

    def noisy(x, y, batch, key):
        return inner(x, y, batch) + 0.01 * jnp.sum(jax.random.normal(key, (3,)) * y["w"])

    def stateful(x, y, batch, state):
        a, b = batch
        mean = 0.9 * state["mean"] + 0.1 * jnp.mean(a, 0)
        return inner(x, y, (a - jax.lax.stop_gradient(mean), b)), {}, {"mean": mean}

    def outer(x, y, batch):
        a, b = batch
        return 0.5 * jnp.mean((a @ y["w"] + y["b"] - b) ** 2) + 0.01 * jnp.sum(x**2)

    def outer_stateful(x, y, batch, state):
        return outer(x, y, batch) + 0.1 * jnp.sum(state["mean"] * y["w"])

    state = {"mean": jnp.zeros(3)} if kind == "state" else None
    try:
        problem = {
            "key": lambda: bl.Problem(inner=noisy, outer=outer),
            "state": lambda: bl.Problem(inner=stateful, outer=outer_stateful),
            "prox": lambda: bl.Problem(inner=inner, outer=outer, prox=bl.prox.l1(0.05)),
        }.get(kind, lambda: bl.Problem(inner=inner, outer=outer))()
    except TypeError:
        problem = bl.Problem(inner=inner, outer=outer)
    train, valid = (jnp.asarray(a), jnp.asarray(b)), (jnp.asarray(a[::-1] + 0.1), jnp.asarray(b[::-1]))
    whole = bl.Batch(train, valid)
    stream = rng.choice([None, bl.epochs, bl.iid, bl.blocks])
    data = whole if stream is None else stream(whole, 4, seed=rng.randrange(9))
    return problem, -jnp.ones(3), {"w": jnp.zeros(3), "b": jnp.zeros(())}, data, state


def tasks(rng, kind):
    """Return a problem of many small regressions, for meta-learning."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    draw = lambda: (jnp.asarray(numbers.normal(size=(6, 5, 2))), jnp.asarray(numbers.normal(size=(6, 5))))

    def loss(x, y, batch):
        a, b = batch
        return 0.5 * jnp.mean((a @ y - b) ** 2)

    return bl.Problem(inner=loss, outer=loss), jnp.ones(2), jnp.ones(2), bl.Batch(draw(), draw()), None


def accepted(function, options):
    """Return `options` for `function`, with those it has no parameter for packed into `bl.RunOptions`."""
    names = inspect.signature(function).parameters
    own = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    return own | ({"options": bl.RunOptions(**rest)} if rest else {})


def built(rng, plain):
    """Return a solver with the rest of a program: start, data, model state."""
    name = rng.choice(COMMON) if rng.random() < 0.5 else rng.choice(sorted(SOLVERS))
    options = dict(rng.choice(SOLVERS[name]))
    kind = rng.choice(["plain", "plain", "key", "state", "prox"])
    problem, x0, y0, data, state = (tasks if name in META else quadratic if rng.random() < 0.4 else ridge)(
        rng, kind
    )
    factory = solver_named(name)
    parameters = inspect.signature(factory).parameters
    sizes = {"inner": rng.choice([0.05, 0.1]), "adjoint": 0.1, "outer": rng.choice([0.01, 0.05, 3.0])}
    rules = {"inner": rng.choice(["number", *RULES]), "outer": rng.choice(["number", *RULES])}
    adjoint = options.pop("adjoint", None)
    if adjoint == "cg":
        extra = {"adjoint": bl.adjoints.cg(max_steps=4)}
    elif adjoint == "neumann":
        extra = {"adjoint": bl.adjoints.neumann(0.1, 4)}
    else:
        extra = {"adjoint": 0.1} if "adjoint" in parameters and name != "imaml" else {}
    made = {level: RULES["number" if plain else rule] for level, rule in rules.items() if level in parameters}

    def make(scale=1.0):
        factors = {"inner": 1.0, "outer": scale}
        chosen = {level: rule(sizes[level] * factors[level]) for level, rule in made.items()}
        return factory(problem, **chosen, **extra, **options)

    return make, x0, y0, data, state


def digest(value):
    """Return a short hash of all arrays in `value`, their names, shapes and types included."""
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        leaf = np.asarray(leaf)
        total.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}".encode())
        total.update(leaf.tobytes())
    return total.hexdigest()[:12]


def ends(result):
    state = result.run.solver
    return {
        "x": digest(result.x),
        "y": digest(result.y),
        "v": digest(getattr(state, "v", None)),
        "model": digest(result.run.model),
        "trace": digest({name: np.asarray(column) for name, column in result.trace.items()}),
        "probes": digest(dict(getattr(result, "probes", {}))),
        "steps": np.asarray(result.steps).tolist(),
        "code": str(result.status.code)
        if not isinstance(result.status, list)
        else [str(s.code) for s in result.status],
    }


def program(number):
    """Run program `number`, with step sizes for rules if the method refuses these."""
    first = attempt(number, plain=False)
    return first | {"instead": attempt(number, plain=True)} if "refused" in first else first


def attempt(number, plain):
    """Return the digests of program `number`, or the type of the error."""
    rng = random.Random(number)
    warnings.simplefilter("ignore")
    try:
        make, x0, y0, data, state = built(rng, plain)
        options = {"steps": STEPS, "data": data, "seed": rng.randrange(5), "model_state": state}
        if rng.random() < 0.3:
            options["warmup"] = rng.choice([1, 5])
        if rng.random() < 0.4:
            options["every"] = rng.choice([1, 4, 7])
        if rng.random() < 0.3:
            options["record"] = lambda state, info: {"first": jax.tree.leaves(state.x)[0].ravel()[0]}
        if rng.random() < 0.15:
            options["tol"] = 0.05
        if rng.random() < 0.5:
            options["thin"] = rng.choice([None, 5])
        hooks = rng.choice([[], [], ["best"], ["early"], ["plain"]])
        how = rng.choice(["run", "run", "resume", "disk", "sweep", "mesh", "halve"])
        seen = []
        options["hooks"] = [
            {
                "best": lambda: bl.hooks.Best("hypergradient_norm"),
                "early": lambda: bl.hooks.EarlyStopping("hypergradient_norm", patience=2),
                "plain": lambda: lambda event: seen.append(int(np.max(event.step))),
            }[hook]()
            for hook in hooks
        ]
        if hooks and "every" not in options:
            options["every"] = 4  # or the clock decides when hooks are called
        solver = make()
        if how == "sweep":
            keep = {"steps", "data", "seed", "hooks", "every", "record"}
            options = {name: value for name, value in options.items() if name in keep} | {"hooks": []}
            options["seeds"] = options.pop("seed")
            if state is not None:
                options["model_state"] = state
            many = [make(scale) for scale in (1.0, 0.5, 100.0)]
            return ends(bl.sweep(many, x0, y0, **accepted(bl.sweep, options)))
        if how == "halve":
            options["on_divergence"] = "halve"
        if how == "mesh":
            options["mesh"] = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
        call = lambda *start, **options: bl.run(solver, *start, **accepted(bl.run, options))
        if how == "resume":
            half = call(x0, y0, **options | {"steps": 11})
            later = {
                name: value
                for name, value in options.items()
                if name not in ("seed", "model_state", "warmup")
            }
            return ends(call(resume=half, **later | {"steps": STEPS - 11}))
        if how == "disk":
            with tempfile.TemporaryDirectory() as folder:
                disk = {"checkpoint": folder, "save_every": 5, "resume": "auto"}
                call(x0, y0, **options | disk | {"steps": 11})
                return ends(call(x0, y0, **options | disk))
        return ends(call(x0, y0, **options))
    except Exception as error:
        if os.environ.get("DIFFERENTIAL_VERBOSE"):
            print(number, type(error).__name__, str(error)[:300], file=sys.stderr)
        return {"refused": type(error).__name__}


def digests(programs, jobs):
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=50) as pool:
        return dict(zip(map(str, programs), pool.map(program, programs, chunksize=5), strict=True))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reference", nargs="?", help="what --save wrote with the other version")
    parser.add_argument("--save", help="store this version's digests and compare nothing")
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    programs = range(chosen.first, chosen.first + chosen.programs)
    found = digests(programs, chosen.jobs)
    refused = sum("refused" in each.get("instead", {}) for each in found.values())
    print(f"{bl.__file__}: {len(found)} programs, {refused} refused")
    if chosen.save:
        with open(chosen.save, "w") as file:
            json.dump(found, file, indent=0)
        return 0
    with open(chosen.reference) as file:
        reference = json.load(file)
    shared = [number for number in found if number in reference]
    different = [number for number in shared if found[number] != reference[number]]
    for number in different:
        names = [
            n
            for n in {**found[number], **reference[number]}
            if found[number].get(n) != reference[number].get(n)
        ]
        print(number, {name: (reference[number].get(name), found[number].get(name)) for name in names})
    print(f"{len(shared)} compared, {len(different)} different")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
