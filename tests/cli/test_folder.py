"""The folder a command writes into: tried before the work, for one process at a time."""

import os
import threading

import pytest

from bilevel.atomic_files import try_folder
from bilevel.cli import folder as module
from bilevel.cli.folder import taken


def test_a_second_one_is_refused_until_the_first_has_ended(tmp_path):
    with taken(tmp_path / "a"):
        with pytest.raises(ValueError, match=r"another bilevel is writing into .*a: wait .* or name another"):
            taken(tmp_path / "a").__enter__()
        with taken(tmp_path / "a" / "below"), taken(tmp_path / "b"):
            pass
    with taken(tmp_path / "a"):
        pass
    assert list((tmp_path / "b").iterdir()) == []


def test_of_many_at_once_one_wins_and_the_others_are_told_why(tmp_path):
    """No race on the way: making the folder, the lock and the probe."""
    ready, done = threading.Barrier(8), threading.Barrier(8)
    outcomes = []

    def start():
        ready.wait()
        try:
            with taken(tmp_path / "a" / "b"):
                outcomes.append("taken")
                done.wait()
        except ValueError as error:
            outcomes.append(str(error))
            done.wait()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("taken") == 1
    assert sum("another bilevel is writing" in outcome for outcome in outcomes) == 7


def test_probes_do_not_meet(tmp_path):
    """Where the file system knows no locks, two starts still do not spoil each other's trial."""
    errors = []

    def try_often():
        try:
            for _ in range(200):
                try_folder(tmp_path)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=try_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == []


def test_without_locks_it_goes_on(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def unsupported(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with taken(tmp_path) as first, taken(tmp_path) as second:
        assert first == second == tmp_path


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_name_that_no_folder_can_have(tmp_path, name):
    with pytest.raises(ValueError, match="cannot write into "):
        taken(tmp_path / name).__enter__()


def test_a_folder_that_takes_names_but_no_bytes(tmp_path, monkeypatch):
    def full(path, content):
        path.touch()
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module.Path, "write_bytes", full)
    with pytest.raises(ValueError, match="No space left on device"):
        taken(tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []
