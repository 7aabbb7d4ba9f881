"""Who takes part, in what, and how: one file for each library.

A contestant's file has a function for each method it offers, `method(task, tolerance) -> run`; `run()` takes the
task's steps from its start and returns x and y as NumPy arrays. Only the ridge task looks at the tolerance. Nothing is
imported here, so that a library which is not installed is missed by its own process alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One contestant in one task: the function of its file, and how it goes.

    `like`: the method of `race.reference` that its iterates must be those of, if its name is another.
    """

    task: str
    method: str
    how: str
    like: str | None = None

    @property
    def iterates(self) -> str:
        return self.like or self.method


@dataclass(frozen=True)
class Contestant:
    name: str
    module: str
    packages: tuple[str, ...]
    entries: tuple[Entry, ...]


WARM = "one warm step on v"
NEUMANN = "one Neumann term"
QUADRATIC = "CG at both levels"

CONTESTANTS = (
    Contestant(
        "bilevel",
        "with_bilevel",
        ("bilevel", "jax"),
        (
            Entry("itd", "itd", "`bl.itd`"),
            Entry("aid", "aid", f"`bl.aid`: {WARM}"),
            Entry("aid", "aid_neumann", f"`adjoints.neumann`: {NEUMANN}"),
            Entry("soba", "soba", "`bl.soba`"),
            Entry("ridge", "ridge", "`bl.hoag`: L-BFGS, then CG"),
        ),
    ),
    Contestant(
        "bilevel, torch front",
        "with_front",
        ("bilevel", "torch", "jax"),
        (
            Entry("itd", "itd", "`bl.itd`"),
            Entry("aid", "aid", f"`bl.aid`: {WARM}"),
            Entry("aid", "aid_neumann", f"`adjoints.neumann`: {NEUMANN}"),
            Entry("soba", "soba", "`bl.soba`"),
        ),
    ),
    Contestant(
        "JAX by hand",
        "by_hand_jax",
        ("jax",),
        (
            Entry("itd", "itd", "`lax.scan`"),
            Entry("aid", "aid", WARM),
            Entry("soba", "soba", "forward over reverse"),
            Entry("soba", "soba_reverse", "reverse over reverse, as in benchmark_bilevel", like="soba"),
            Entry("ridge", "ridge", QUADRATIC),
        ),
    ),
    Contestant(
        "torch.compile",
        "with_torch_compile",
        ("torch",),
        (
            Entry("itd", "itd", "`torch.func`, compiled"),
            Entry("aid", "aid", WARM),
            Entry("soba", "soba", "reverse over reverse"),
        ),
    ),
    Contestant(
        "PyTorch by hand",
        "by_hand_torch",
        ("torch",),
        (
            Entry("itd", "itd", "autograd"),
            Entry("aid", "aid", WARM),
            Entry("soba", "soba", "reverse over reverse"),
            Entry("ridge", "ridge", QUADRATIC),
        ),
    ),
    Contestant(
        "jaxopt",
        "with_jaxopt",
        ("jaxopt", "jax"),
        (
            Entry("itd", "itd", "`GradientDescent`, unrolled"),
            Entry("aid", "aid_neumann", f"`implicit_diff_solve`: {NEUMANN}"),
            Entry("ridge", "ridge", "`LBFGS`, then `solve_cg`"),
        ),
    ),
    Contestant(
        "optimistix",
        "with_optimistix",
        ("optimistix", "lineax", "jax"),
        (
            Entry("itd", "itd", "`OptaxMinimiser`, checkpointed loop"),
            Entry("ridge", "ridge", "`LBFGS`, then `lineax.CG`"),
        ),
    ),
    Contestant(
        "TorchOpt",
        "with_torchopt",
        ("torchopt", "torch"),
        (
            Entry("itd", "itd", "`torchopt.sgd`"),
            Entry("aid", "aid", f"`custom_root`: {WARM}"),
            Entry("ridge", "ridge", "`torch.optim.LBFGS`, then `solve_cg`"),
        ),
    ),
    Contestant(
        "Betty", "with_betty", ("betty-ml", "torch"), (Entry("aid", "aid_neumann", f"`neumann`: {NEUMANN}"),)
    ),
    Contestant(
        "BOAT",
        "with_boat",
        ("boat-torch", "higher", "torch"),
        (Entry("itd", "itd", "NGD + RAD"), Entry("aid", "aid_neumann", f"NGD + NS: {NEUMANN}")),
    ),
    Contestant(
        "higher", "with_higher", ("higher", "torch"), (Entry("itd", "itd", "`innerloop_ctx` with SGD"),)
    ),
)
