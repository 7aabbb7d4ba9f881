"""Ctrl-C and SIGTERM end a command wherever they find it."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import typer
from typer.testing import CliRunner

import bilevel_command
from bilevel.cli import app, errors, main
from bilevel.cli.signals import stoppable


class Dropped:
    """Sends a signal from where Python drops whatever is raised."""

    def __init__(self, sent):
        self.sent = sent

    def __del__(self):
        os.kill(os.getpid(), self.sent)
        for _ in range(100):
            pass


def wait_for_ever_unless(sent, dropped, collector):
    if dropped:
        Dropped(sent)
        collector.collect()
    else:
        os.kill(os.getpid(), sent)
    threading.Event().wait(10)
    pytest.fail("the signal was lost")


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_signal_ends_it_even_where_exceptions_are_dropped(capsys, collector, sent, status, dropped):
    hook = sys.unraisablehook
    with pytest.raises(typer.Exit) as caught, stoppable(lambda: "nothing is left"):
        wait_for_ever_unless(sent, dropped, collector)
    assert caught.value.exit_code == status
    assert capsys.readouterr().err == "bilevel: stopped; nothing is left\n"
    assert sys.unraisablehook is hook
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_ctrl_c_while_the_package_is_loaded_ends_in_one_line():
    code = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "jax":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
import bilevel_command
bilevel_command.main()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    said = "bilevel: stopped before anything was done\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (errors.INTERRUPTED, "", said)
    assert bilevel_command.INTERRUPTED == errors.INTERRUPTED


def test_ctrl_c_in_a_command_that_has_little_to_stop(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bilevel.cli.examples.application", interrupt)
    ran = CliRunner().invoke(app, ["examples"])
    assert (ran.exit_code, ran.stderr) == (errors.INTERRUPTED, "bilevel: stopped\n")


def test_a_current_folder_that_is_gone_is_named(monkeypatch, capsys, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr("sys.argv", ["bilevel", "clean", "a.csv", "--label", "b", "--trusted", "c.csv"])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr().err
    assert (caught.value.code, said) == (
        errors.REFUSED,
        "bilevel: the current folder is gone: change into another one\n",
    )


@pytest.mark.slow
def test_other_dropped_exceptions_are_told_as_ever(monkeypatch, collector):
    class Broken:
        def __del__(self):
            raise RuntimeError("in __del__")

    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(str(dropped.exc_value)))
    with stoppable(lambda: ""):
        Broken()
        collector.collect()
    assert told == ["in __del__"]


def test_somebody_else_s_handler_stays():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with stoppable(lambda: ""):
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_it_only_listens_to_exceptions(capsys):
    statuses = []

    def work():
        try:
            with stoppable(lambda: "there"):
                raise KeyboardInterrupt
        except typer.Exit as exit:
            statuses.append(exit.exit_code)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert statuses == [130]
