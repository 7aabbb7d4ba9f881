"""The live view shows the numbers it was given, fits its terminal, changes nothing, and gives the terminal back."""

import io
import re
import sys
import types
from contextlib import nullcontext
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

import bilevel as bl
from bilevel.loop.hooks.drawing import LEVELS, Line, View, clock, is_terminal, trend
from bilevel.loop.hooks.outlook import MOST, History, Outlook, outlook
from run_options import with_options

X0, Y0 = jnp.ones(2), jnp.zeros(2)
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor


def terminal(width: int = 100, height: int = 40) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def written(console: Console) -> str:
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def last_picture(console: Console) -> str:
    return Text.from_ansi(re.split(r"\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*", written(console))[-1]).plain


def test_the_last_picture_has_the_last_numbers_and_the_status(aid):
    console = terminal(width=120)
    result = bl.run(
        aid, X0, Y0, steps=30, options=bl.RunOptions(every=10), hooks=[bl.hooks.Live(console=console)]
    )
    shown = last_picture(console)
    assert "30/30" in shown
    for name in ("outer_value", "hypergradient_norm", "adjoint_residual"):
        column = result.trace[name]
        assert f"{column[-1]:.4g} " in shown
        assert f"from {column[0]:.4g}, lowest {column.min():.4g}" in shown
    assert "completed: Ran all 30 steps" in shown
    inner = np.linalg.norm(bl.run(aid, X0, Y0, steps=30, record=keep_inner).trace["inner"][-1])
    assert re.search(rf"inner gradient\s+{re.escape(f'{inner:.4g}')}", shown)
    widths = {len(found) for found in re.findall(rf"[{LEVELS}]+", shown)}
    assert len(widths) == 1  # fewer looks at the inner gradient than steps, over the same time


def keep_inner(state, info):
    return {"inner": info.inner_gradient}


def test_a_run_that_is_watched_is_bitwise_one_that_is_not(aid):
    options = dict(steps=40, every=7, tol=1e-12)
    watched = bl.run(
        aid, X0, Y0, hooks=[bl.hooks.Live(console=terminal(), tol=1e-12)], **with_options(options)
    )
    alone = bl.run(aid, X0, Y0, **with_options(options))
    np.testing.assert_array_equal(watched.x, alone.x)
    np.testing.assert_array_equal(watched.y, alone.y)
    assert watched.status == alone.status
    for name, column in alone.trace.items():
        np.testing.assert_array_equal(watched.trace[name], column)


@pytest.mark.parametrize("width", [8, 20, 43, 44, 83, 84, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_picture_stays_within_its_terminal(width, ascii_only):
    numbers = [3.0, np.nan, -np.inf, 1e-300, 1e300, 0.0]
    names = ["outer value", "a metric of a very long name indeed"] * 30
    lines = [Line(name, np.array(numbers[i % 6 :] + numbers[: i % 6]), 1.0) for i, name in enumerate(names)]
    view = View("AID", 123_456, 10**9, 1e5, 1234.5, lines, Outlook("diverging", "a sentence " * 5, "bad"))
    console = terminal(width, height=24)
    if ascii_only:
        console = Console(
            file=io.TextIOWrapper(io.BytesIO(), "ascii"), width=width, height=24, force_terminal=True
        )
    shown = "".join(part.text for part in console.render(view)).splitlines()
    assert max(map(len, shown)) <= width
    assert not ascii_only or not set("".join(shown)) & set(LEVELS)
    if width >= 44:
        assert len(shown) < 24
        assert any("and 42 more" in line for line in shown)


@pytest.mark.parametrize(
    ("course", "letters"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        (10.0 ** -np.arange(8), "█▇▆▅▄▃▂▁"),  # of different sizes: by their logarithms
        ([1, 1, 3, 3], "▁█"),
        ([2, 2, 2], "▁▁▁"),
        ([0, np.nan, 1], "▁x█"),
        ([np.inf], "x"),
    ],
)
def test_a_trend_rises_and_falls_with_its_numbers(course, letters):
    assert trend(np.array(course, float), len(letters)) == letters


def test_a_history_is_short_however_long_the_run_and_forgets_what_is_taken_back():
    history, values = History(), np.arange(10_000.0) ** 2 - 5e6
    for first in range(0, 10_000, 37):
        history.add(first, {"a": values[first : first + 37]})
    assert len(history.steps) <= MOST
    np.testing.assert_array_equal(history.columns["a"], values[history.steps])
    assert np.ptp(np.diff(history.steps)) == 0
    assert (history.last["a"], history.lowest["a"]) == (values[-1], values.min())
    assert history.course("a")[0] == values[0]
    assert history.course("a")[-1] == values[-1]
    history.add(500, {"a": np.array([-7.0])})
    assert history.steps.max() <= 500
    assert history.course("a")[-1] == -7.0


def test_a_number_that_is_first_measured_late_has_a_course_from_the_start():
    history = History()
    for first in range(0, 3000, 30):
        late = {"b": np.full(30, 2.0 + first)} if first >= 900 else {}
        history.add(first, {"a": np.arange(30.0) + first} | late)
    assert len(history.columns["a"]) == len(history.columns["b"]) == len(history.steps)
    expected = np.where(history.steps < 900, 902.0, 2.0 + history.steps // 30 * 30)
    np.testing.assert_array_equal(history.columns["b"], expected)
    assert history.lowest["b"] == 902.0


def history_of(values, norm=1.0) -> History:
    history = History()
    values = np.asarray(values, float)
    history.add(0, {"outer_value": values, "hypergradient_norm": np.full(len(values), norm)})
    return history


@pytest.mark.parametrize(
    ("values", "options", "word"),
    [
        ([1.0, 2.0], {}, "begun"),
        (0.9 ** np.arange(40), {}, "falling"),
        (1.03 ** np.arange(40), {}, "rising"),
        (1.5 ** np.arange(40), {}, "diverging"),
        ([1.0] * 20 + [np.nan], {}, "diverging"),
        ([5.0, 4.0, 3.0, *[1.0] * 60], {}, "flat"),
        (1 + 0.1 * (np.arange(40) % 2), {}, "level"),
        (0.9 ** np.arange(40), {"norm": 1e-7}, "converged"),
    ],
)
def test_how_a_run_stands(values, options, word):
    tol = 1e-6 if options else None
    assert outlook(history_of(values, **options), len(values), tol).word == word


def test_a_tolerance_that_is_not_met_yet_is_compared_with():
    assert "; 50 times tol=0.02" in outlook(history_of(0.9 ** np.arange(40)), 40, 0.02).sentence


def test_what_is_said_of_a_blow_up_is_what_the_status_says_later(q):
    console = terminal(width=200)
    live = bl.hooks.Live(console=console)
    result = bl.run(
        bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=50.0),
        X0,
        Y0,
        steps=30,
        options=bl.RunOptions(every=15),
        hooks=[live],
    )
    assert "a finite blow-up" in result.status.message
    assert "diverging: Its outer value rose from" in written(console)


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("progress", ["live", True])
def test_the_terminal_is_given_back_whatever_happens(aid, error, progress, monkeypatch):
    console, streams = terminal(), (sys.stdout, sys.stderr)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)

    def raises(event):
        raise error

    ends = nullcontext() if isinstance(error, KeyboardInterrupt) else pytest.raises((bl.RunError, SystemExit))
    often = {bl.run: {"options": bl.RunOptions(every=10)}, bl.sweep: {"every": 10}}
    for run, start in ((bl.run, aid), (bl.sweep, [aid])):
        with ends:
            run(start, X0, Y0, steps=20, hooks=[raises], progress=progress, **often[run])
        assert written(console).count(HIDE) == written(console).count(SHOW) > 0
        assert (sys.stdout, sys.stderr) == streams


def test_a_terminal_that_goes_away_ends_no_run(aid):
    class Gone(io.StringIO):
        def write(self, text):
            if "10/30" in text:
                raise OSError("Input/output error")
            return super().write(text)

    console = Console(file=Gone(), force_terminal=True, width=80, height=30)
    assert (
        bl.run(
            aid, X0, Y0, steps=30, options=bl.RunOptions(every=10), hooks=[bl.hooks.Live(console=console)]
        ).steps
        == 30
    )


def test_what_hooks_print_appears_above_the_view(aid, monkeypatch):
    console = terminal()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    bl.run(
        aid,
        X0,
        Y0,
        steps=30,
        options=bl.RunOptions(every=10),
        hooks=[lambda event: print("seen", event.step), bl.hooks.Live(console=console)],
    )
    shown = written(console)
    assert all(f"seen {step}\n" in shown for step in (10, 20, 30))
    assert "completed" in last_picture(console)


def test_pictures_are_paced_by_the_clock(as_users_see_it):
    drawn = []
    live = bl.hooks.Live(console=terminal())

    class Counting:
        show = staticmethod(drawn.append)
        close = staticmethod(lambda: None)

    live.begin(event(0, 0.0, []))
    live._screen = Counting
    for k in range(1, 101):
        live(event(k, 0.01 * k, [1.0 / k]))
    assert len(drawn) == 3  # the first step, after half a second, and the last
    np.testing.assert_array_equal(drawn[-1].lines[0].course, 1.0 / np.arange(1, 101))
    assert drawn[-1].rate == pytest.approx(100.0)


def event(step, seconds, values):
    rows = {"outer_value": np.array(values), "hypergradient_norm": np.ones(len(values))} if values else {}
    return bl.hooks.Event(step, 100, None, None, rows, seconds, "AID")


def test_without_a_terminal_nothing_is_shown(aid, capsys):
    bl.run(aid, X0, Y0, steps=10, progress="live")
    assert capsys.readouterr() == ("", "")


def log_of(events):
    """What `progress=True` writes where there is no terminal."""
    console = Console(file=io.StringIO(), force_terminal=False)
    bar = bl.hooks.Progress()
    bar._console = console
    bar.begin(event(0, 0.0, []))
    for each in events:
        bar(each)
    bar.end(None)
    return written(console).splitlines()


def test_without_a_terminal_progress_is_a_line_per_minute(as_users_see_it):
    lines = log_of(event(k, 7.0 * k, [1.0 / k]) for k in range(1, 101))
    assert lines[0] == "AID 9/100 in 1:03, 0.14 it/s, 10:37 left, f 0.1111  ‖∇Φ‖≈1.00e+00"
    assert [line.split()[1] for line in lines] == [f"{k}/100" for k in (*range(9, 100, 9), 100)]
    assert lines[-1] == "AID 100/100 in 11:40, f 0.01  ‖∇Φ‖≈1.00e+00"


def test_a_run_of_less_than_a_minute_leaves_no_line(as_users_see_it):
    assert log_of(event(k, 0.5 * k, [1.0]) for k in range(1, 101)) == []


def test_a_line_has_the_newest_numbers_of_probes(as_users_see_it):
    probed = lambda k: {"accuracy": 0.01 * k, "many": np.ones(2)} if k % 20 == 0 else {}
    lines = log_of(replace(event(k, 1.0 * k, [1.0]), probes=probed(k)) for k in range(1, 101))
    assert [line.rpartition(", ")[2] for line in lines] == ["accuracy 0.6", "accuracy 1"]


def test_in_a_notebook_one_output_is_replaced(aid, monkeypatch):
    outputs = []
    handle = types.SimpleNamespace(update=lambda data, raw: outputs.append(data))
    shown = types.SimpleNamespace(display=lambda data, raw, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    live = bl.hooks.Live(console=Console(force_jupyter=True))
    bl.run(aid, X0, Y0, steps=30, options=bl.RunOptions(every=10), hooks=[live])
    assert "30/30" in outputs[-1]["text/plain"]
    assert outputs[-1]["text/html"].startswith("<pre")
    assert all("completed" not in output["text/plain"] for output in outputs[:-1])


@pytest.mark.slow
def test_of_a_sweep_the_lowest_values_are_shown(q):
    console = terminal(width=120)
    solvers = [
        bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=beta) for beta in (0.01, 0.1, 1e30)
    ]  # the last diverges
    found = bl.sweep(solvers, X0, Y0, steps=20, every=10, hooks=[bl.hooks.Live(console=console)])
    lowest = np.nanmin(found.trace["outer_value"][:, -1])
    assert re.search(rf"outer value\s+{re.escape(f'{lowest:.4g}')}", last_picture(console))
    assert repr(found) in last_picture(console).replace("\n", "")


@pytest.mark.parametrize("progress", ["bar", 1, None])
def test_progress_is_a_bar_or_live(aid, progress, as_users_see_it):
    with pytest.raises(TypeError, match=f'progress must be True, False or "live", not {progress!r}'):
        bl.run(aid, X0, Y0, steps=1, progress=progress)


@pytest.mark.parametrize(
    ("seconds", "said"), [(5.9, "0:05"), (61.0, "1:01"), (3661.0, "1:01:01"), (4e5, "111:06:40")]
)
def test_times(seconds, said):
    assert clock(seconds) == said


def test_the_newest_numbers_of_an_event_are_those_of_its_last_step(aid):
    seen = []
    result = bl.run(
        aid,
        X0,
        Y0,
        steps=10,
        options=bl.RunOptions(every=5),
        record=keep_inner,
        hooks=[lambda e: seen.append(e.newest())],
    )
    assert seen[-1] == {
        name: result.trace[name][-1] for name in ("outer_value", "hypergradient_norm", "adjoint_residual")
    }


def test_a_closed_standard_output_is_no_terminal(monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    assert not is_terminal(sys.stdout)
