"""Run the code of a page in a separate process, at hardly more cost than the code itself.

A server process has imported the libraries of the pages and computed nothing. It forks a child for every page, which
JAX survives (see `bilevel.forks`). This is Python's forkserver.
"""

import contextlib
import gc
import io
import multiprocessing
import os
import shlex
import sys
import traceback
import types
from pathlib import Path

from pages import Part

IMPORTED = [
    "jax.numpy", "jaxlib.mlir.dialects.mhlo", "matplotlib.pyplot", "optax", "scipy.optimize", "scipy.stats",
    "bilevel", "bilevel.cli", "bilevel.loop.sweep", "bilevel.plot", "bilevel.theory.certificates",
]  # fmt: skip


def run(parts: list[Part], where: Path, name: str = "page", arguments: tuple[str, ...] = ()) -> list[str]:
    """Return the output of each part. Raise an AssertionError with the traceback if one raises."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    ours, theirs = context.Pipe(duplex=False)
    environment = {
        "XLA_FLAGS": os.environ["BILEVEL_TESTS_XLA_FLAGS"],  # compiled quickly: see conftest.py
        "BILEVEL_DATA": None,  # the bundled data, as a reader has them
        "BILEVEL_CACHE": str(where / "cache"),
        "MPLBACKEND": "Agg",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",  # on shared cores the threads of PyTorch wait for each other ten times as long
    }
    child = context.Process(target=_run, args=(theirs, parts, str(where), name, arguments, environment))
    child.start()
    theirs.close()
    try:
        printed, error = ours.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"{name} ended its process with status {child.exitcode}") from None
    child.join()
    assert not error, error + "\n" + "".join(printed)
    return printed


def _run(
    answer, parts: list[Part], where: str, name: str, arguments: tuple[str, ...], environment: dict
) -> None:
    for variable, value in environment.items():
        os.environ.pop(variable, None)
        if value is not None:
            os.environ[variable] = value
    gc.freeze()  # objects of the server, which a collection would look at and copy
    gc.set_threshold(50_000, 10, 10)  # see conftest.py
    os.chdir(where)
    sys.path.insert(0, where)
    sys.argv = [name, *arguments]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    printed, error = [], ""
    for part in parts:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                if part.language == "python":
                    code = "\n" * part.line + part.code  # so that a traceback names the line of the page
                    exec(compile(code, name, "exec"), main.__dict__)
                else:
                    _commands(part.code)
            except BaseException:
                error = f"{name}, after line {part.line}:\n{traceback.format_exc()}"
        printed.append(out.getvalue())
        if error:
            break
    answer.send((printed, error))


def _commands(lines: str) -> None:
    from bilevel.cli import main

    for line in filter(None, (line.partition("#")[0].strip() for line in lines.splitlines())):
        sys.argv = shlex.split(line)
        assert sys.argv[0] == "bilevel", f"only bilevel's own commands are run here, not {line}"
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{line} ended with status {end.code}") from None
