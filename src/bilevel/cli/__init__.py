"""The command line: one file a command, registered here."""

import typer

from bilevel.cli import demo

app = typer.Typer(
    name="bilevel",
    help="Single-loop bilevel optimisation with convergence certificates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

demo.register(app)


@app.callback()
def _commands() -> None:
    """Keeps `bilevel demo` a command of its own even while it is the only one."""


def main() -> None:
    app()
