"""Compiled programs between two commands: kept in a folder of the user's own, checked, bounded, never in the way."""

import os
import stat
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from bilevel.cli import app, compare, program_cache, reproduce
from bilevel.cli.program_cache import LIST, programs_kept
from bilevel.locks import Lock

HITS = []
jax.monitoring.register_event_listener(
    lambda event, **_: HITS.append(event) if event.endswith("/cache_hits") else None
)
POSIX = pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no owners")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where programs would be kept by a user who has said nothing; the tests' own cache is away meanwhile."""
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(program_cache, "QUICK_SECONDS", 0.0)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "cache" / "compiled"
    jax.config.update("jax_compilation_cache_dir", before)


def compute(factor: float = 3.0) -> tuple[float, int]:
    """Something compiled anew, which comes to 14 · factor, and how much of it was found in a cache."""
    HITS.clear()
    value = jax.jit(lambda a: jnp.sum(factor * a * a))(np.array([1.0, 2.0, 3.0]))
    return float(value), len(HITS)


def entries(folder):
    return {path.name for path in folder.iterdir() if path.name != LIST}


def test_the_second_command_finds_what_the_first_one_compiled(folder):
    with programs_kept():
        assert compute() == (42.0, 0)
    kept = entries(folder)
    assert kept
    with programs_kept():
        value, hits = compute()
        assert (value, hits > 0) == (42.0, True)
    assert entries(folder) == kept
    assert jax.config.jax_compilation_cache_dir is None
    assert compute() == (42.0, 0)  # nothing goes on outside
    if hasattr(os, "getuid"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def half(path, before):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path, before):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path, before):
    path.write_bytes(b"")


def of_another(path, before):
    """A sound entry under the name of another one would be a wrong answer, if it were believed."""
    path.write_bytes(next(content for name, content in before.items() if name != path.name))


def not_listed(path, before):
    (path.parent / LIST).unlink(missing_ok=True)


def badly_listed(path, before):
    (path.parent / LIST).write_text('["no", "sums"]')


def without_sums(path, before):
    (path.parent / LIST).write_text('{"processor": 1, "sums": [1]}')


@pytest.mark.parametrize(
    "damage",
    [half, flipped, empty, of_another, not_listed, badly_listed, without_sums],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_entry_is_compiled_again(folder, damage):
    with programs_kept():
        compute(), compute(5.0)
    before = {name: (folder / name).read_bytes() for name in entries(folder)}
    for name in before:
        damage(folder / name, before)
    with programs_kept():
        assert entries(folder) == set()
        assert compute() == (42.0, 0)
        assert compute(5.0)[0] == 70.0
    assert entries(folder) == set(before)


def a_file(folder):
    folder.parent.write_text("")


def a_file_inside(folder):
    folder.parent.mkdir()
    folder.write_text("")


def read_by_others(folder):
    folder.mkdir(parents=True)
    folder.chmod(0o755)


def a_link(folder):
    (folder.parent / "elsewhere").mkdir(parents=True, mode=0o700)
    folder.symlink_to("elsewhere")


@POSIX
@pytest.mark.parametrize(
    "obstacle", [a_file, a_file_inside, read_by_others, a_link], ids=lambda obstacle: obstacle.__name__
)
def test_without_a_folder_of_ones_own_everything_is_compiled(folder, obstacle):
    obstacle(folder)
    with programs_kept():
        assert compute() == (42.0, 0)
    with suppress(OSError):
        assert list(folder.iterdir()) == []


@POSIX
def test_of_two_commands_at_once_the_second_compiles_everything(folder):
    with programs_kept():
        compute()
    kept, lock = entries(folder), Lock(folder)
    with programs_kept():
        assert compute() == (42.0, 0)
        compute(5.0)
    lock.close()
    assert entries(folder) == kept


def test_what_another_processor_compiled_is_not_used(folder, monkeypatch):
    with programs_kept():
        compute()
    monkeypatch.setattr(program_cache, "_processor", lambda: "another one, with other instructions")
    with programs_kept():
        assert compute() == (42.0, 0)


def test_what_a_killed_command_left_is_removed(folder):
    folder.mkdir(parents=True, mode=0o700)
    (folder / "jit_half-cache").write_bytes(b"as far as it got")
    with programs_kept():
        assert compute() == (42.0, 0)
    assert "jit_half-cache" not in entries(folder)


@POSIX
@pytest.mark.parametrize("kind", ["pipe", "list", "folder", "dangling", "link"])
def test_what_is_no_entry_is_in_nobodys_way(folder, kind):
    """To read a pipe would be to wait for ever; a folder is not ours to remove; what a link leads to is not ours."""
    with programs_kept():
        compute()
    odd = folder / (LIST if kind == "list" else "odd")
    if kind in ("pipe", "list"):
        odd.unlink(missing_ok=True)
        os.mkfifo(odd)
    elif kind == "folder":
        odd.mkdir()
        (odd / "of the user's").write_text("own")
    else:
        odd.symlink_to("nowhere" if kind == "dangling" else sorted(entries(folder))[0])
    with programs_kept():
        assert compute()[0] == 42.0
    with programs_kept():
        value, hits = compute()
        assert (value, hits > 0) == (42.0, True)
    assert (folder / "odd").is_dir() == (kind == "folder")
    assert "odd" not in entries(folder) or kind == "folder"


def test_the_oldest_go_when_there_are_too_many(folder, monkeypatch):
    with programs_kept():
        compute()
    old = entries(folder)
    for name in old:
        os.utime(folder / name, (0, 0))
    monkeypatch.setattr(program_cache, "LARGEST", sum((folder / name).stat().st_size for name in old) + 100)
    with programs_kept():
        compute(5.0)
    left = entries(folder)
    assert old - left
    assert left - old
    assert sum((folder / name).stat().st_size for name in left) <= program_cache.LARGEST


@pytest.mark.parametrize("said", ["a folder", "none"])
def test_what_the_user_said_about_it_stays(folder, tmp_path, said, monkeypatch):
    own = str(tmp_path / "own") if said == "a folder" else None
    jax.config.update("jax_compilation_cache_dir", own)
    jax.config.update("jax_enable_compilation_cache", said == "a folder")
    try:
        with programs_kept():
            assert jax.config.jax_compilation_cache_dir == own
            assert jax.config.jax_enable_compilation_cache == (said == "a folder")
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "work", "rest", "arguments"),
    [
        (compare, "_measure", "_conclude", ["compare", "quadratic", "--quick"]),
        (reproduce, "_perform", "_conclude", ["reproduce", "fig1", "--quick"]),
    ],
    ids=["compare", "reproduce"],
)
def test_the_commands_keep_theirs(folder, tmp_path, monkeypatch, command, work, rest, arguments):
    seen = []
    monkeypatch.setattr(command, work, lambda *_: seen.append(jax.config.jax_compilation_cache_dir))
    monkeypatch.setattr(command, rest, lambda *_: None)
    ran = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert seen == [str(folder)]
    assert jax.config.jax_compilation_cache_dir is None
