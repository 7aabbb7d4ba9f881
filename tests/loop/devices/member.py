"""One process of several: `python member.py NUMBER OF PORT FOLDER WHAT`. Prints JSON lines."""

import json
import os
import signal
import sys
from datetime import timedelta

import jax

number, of, port, folder, what = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
jax.config.update("jax_num_cpu_devices", 4 // of)
jax.config.update("jax_enable_x64", True)
if of > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        of,
        number,
        coordinator_bind_address=f"127.0.0.1:{port}",
        heartbeat_timeout_seconds=6,
        shutdown_timeout_seconds=10,
    )

import nets  # noqa: E402
import numpy as np  # noqa: E402

import bilevel as bl  # noqa: E402
from run_options import with_options  # noqa: E402

mesh = bl.sharded(jax.sharding.Mesh(np.array(jax.devices()), ("data",)), y="data")


def say(**words):
    print(json.dumps({"process": number, **words}), flush=True)


def ended(result, **words):
    # What several processes hold, none can print; the trace is everywhere.
    values = [float(value) for value in result.trace["outer_value"]]
    say(what=what, steps=result.steps, code=result.status.code.value, values=values, **words)


def at(step, do):
    done = []

    def hook(event):
        if event.step >= step and not done:
            done.append(1)
            return do()

    return hook


def run(steps=12, data=None, **asked):
    solver = bl.soba(nets.problem, inner=0.1, adjoint=0.1, outer=0.5)
    data = nets.batch() if data is None else data
    return bl.run(
        solver,
        *nets.start(),
        data=data,
        steps=steps,
        **with_options(asked | dict(mesh=mesh, every=2)),
    )


class Share:
    """A loader of this process's share of the rows of each batch: `get_state` and `set_state` say where it stands."""

    def __init__(self, length=None):
        self.at, self.length = 0, length

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.length:
            raise StopIteration
        rows = np.arange(16).reshape(of, -1)[number] + 16 * (self.at % 4)
        self.at += 1
        level = tuple(array[rows] for array in nets.batch().inner)
        return bl.Batch(level, level, rows=bl.Levels(rows, rows))

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


def loaders():
    solver = bl.itd(nets.of_rows, inner=0.1, outer=0.5)
    ask = dict(mesh=bl.sharded(mesh.mesh, x="data"), steps=6)
    ended(bl.run(solver, *nets.start(), data=Share(), **with_options(ask)), part="loader")
    # The loaders have different lengths: the run ends with the shorter one.
    ended(
        bl.run(solver, *nets.start(), data=Share(3 + number), **with_options(ask)),
        part="shorter",
    )


class Odd(Share):
    """In the last process alone: it raises at once, or a batch of half the rows, or Ctrl-C, comes at its third."""

    def __init__(self, how):
        super().__init__()
        self.how = how if number == of - 1 else None

    def __next__(self):
        batch = super().__next__()
        if self.how == "fails":
            raise OSError("no such disk")
        if self.how == "interrupted" and self.at == 3:
            raise KeyboardInterrupt
        return jax.tree.map(lambda a: a[:4], batch) if self.how == "short" and self.at == 3 else batch


def leaves():
    raise SystemExit(3)


def unlike():
    """What one process is given, or does, otherwise: what each of them raises."""
    last = number == of - 1
    x0, y0 = nets.start()
    solver = bl.soba(nets.problem, inner=0.1, adjoint=0.1, outer=0.5)
    go = lambda solver=solver, x0=x0, data=None, steps=6, hooks=(), **asked: bl.run(
        solver,
        x0,
        y0,
        data=data or nets.batch(),
        steps=steps,
        hooks=hooks,
        **with_options(asked | dict(mesh=mesh, every=2)),
    )
    of_loader = lambda how: bl.run(
        bl.itd(nets.of_rows, inner=0.1, outer=0.5),
        x0,
        y0,
        data=Odd(how),
        steps=6,
        options=bl.RunOptions(mesh=bl.sharded(mesh.mesh, x="data")),
    )
    for part, do in {
        "x0": lambda: go(x0=x0 + last),
        "data": lambda: go(data=nets.batch(32 if last else 64)),
        "seed": lambda: go(seed=int(last)),
        "solver": lambda: go(
            solver=bl.soba(nets.problem, inner=0.1, adjoint=0.2 if last else 0.1, outer=0.5)
        ),
        "argument": lambda: go(steps=-1 if last else 6),
        "leaves": lambda: go(hooks=[at(2, leaves if last else lambda: None)]),
        "fails": lambda: of_loader("fails"),
        "short": lambda: of_loader("short"),
        "interrupted": lambda: of_loader("interrupted"),
    }.items():
        try:
            result = do()
            say(part=part, kind=result.status.code.value, error="", steps=result.steps)
        except (Exception, SystemExit) as error:
            steps = getattr(getattr(error, "result", None), "steps", None)
            say(part=part, kind=type(error).__name__, error=str(error), steps=steps)


def agreements():
    loaders()
    alone = lambda do: at(4, do if number == of - 1 else lambda: None)
    ended(run(hooks=[alone(lambda: bl.hooks.Stop("enough here"))]), part="stop")
    ended(run(hooks=[alone(lambda: os.kill(os.getpid(), signal.SIGINT))]), part="interrupted")
    try:
        run(hooks=[alone(lambda: 1 / 0)])
    except bl.RunError as error:
        say(what=what, part="raised", error=str(error))
    lines = os.path.join(folder, "lines.csv")
    valid = bl.hooks.Evaluate(nets.outer, nets.batch(32).outer, every=4, size=10, name="valid")
    result = run(
        hooks=[bl.hooks.CSV(lines), bl.hooks.Best("valid/loss"), valid],
        checkpoint=folder + "/clock",
        save_every=timedelta(seconds=1e-3),
    )
    saved = sorted(int(each) for each in os.listdir(folder + "/clock") if each.isdecimal())
    with open(lines) as file:
        valid = [float(value) for value in result.probes["valid/loss"]]
        say(what=what, part="files", rows=len(file.readlines()), saved=saved, valid=valid)
    apart = bl.Problem(inner=lambda x, y: ((y - x) ** 2).sum(), outer=lambda x, y: (y**2).sum())
    ask = dict(
        steps=20,
        every=5,
        mesh=bl.sharded(mesh.mesh, x="data", y="data"),
        snapshots="host",
        on_divergence="halve",
    )
    # So large, it is out of range in a few steps; and once half the step size is safe, it is not halved again.
    halved = bl.run(bl.itd(apart, inner=0.4, outer=16.0), np.full(8, 1e130), np.ones(8), **with_options(ask))
    ended(halved, part="halved", halvings=halved.halvings)
    do = lambda: os.kill(os.getpid(), signal.SIGTERM)  # ends the program, with status 143
    run(checkpoint=folder + "/run", hooks=[at(6, do if number == of - 1 else lambda: None)])


def go_on():
    ended(run(checkpoint=folder, resume="auto"))


def killed():
    say(what="pid", pid=os.getpid())
    run(
        steps=10**6,
        checkpoint=folder,
        resume="auto",
        save_every=10,
        hooks=[at(20, lambda: say(what="on its way"))],
    )


{each.__name__: each for each in (agreements, unlike, go_on, killed)}[what]()
