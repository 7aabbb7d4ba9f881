"""Pictures show what the trace, the sweep or the certificate says, and leave matplotlib as it was."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import bilevel as bl

GROUPS = np.array(["a", "b", "a", "a", "b"])
SPREAD = np.array([0.0, 0.2, 0.25, 0.9, 1.0])


def removed():
    ax = Figure().subplots()
    ax.remove()
    return ax


@pytest.fixture(scope="module")
def q():
    return bl.problems.quadratic(kappa=4.0)


@pytest.fixture(scope="module")
def result(q):
    keep = lambda state, info: {"x": state.x, "many": jnp.outer(state.x, jnp.arange(1.0, 6.0))}
    return bl.run(
        bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=0.1), jnp.ones(2), jnp.zeros(2), steps=40, record=keep
    )


@pytest.fixture(scope="module")
def thinned(q):
    return bl.run(
        bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=0.1),
        jnp.ones(2),
        jnp.zeros(2),
        steps=40,
        options=bl.RunOptions(thin=7),
    )


@pytest.fixture(scope="module")
def found(q):
    """The third diverges."""
    solvers = [bl.aid(q.problem, inner=0.1, adjoint=0.1, outer=beta) for beta in (0.01, 0.1, 1e30)]
    return bl.sweep(solvers, jnp.ones(2), jnp.zeros(2), steps=20)


@pytest.fixture
def ax():
    return Figure().subplots()


def test_a_trace_has_a_panel_for_every_column_with_the_column_s_own_numbers(result):
    axes = bl.plot.trace(result)
    names = ["outer_value", "hypergradient_norm", "adjoint_residual"]
    assert [one.get_ylabel() for one in axes] == ["outer value", "hypergradient", "adjoint residual"]
    for one, name in zip(axes, names, strict=True):
        (line,) = one.get_lines()
        np.testing.assert_array_equal(line.get_xdata(), np.arange(40))
        np.testing.assert_array_equal(line.get_ydata(), result.trace[name])
    assert axes[0].get_title(loc="left") == "completed after 40 steps"


def test_a_thinned_trace_is_drawn_at_its_own_steps(thinned):
    (line,) = bl.plot.trace(thinned, "outer_value")[0].get_lines()
    assert list(line.get_xdata()) == [0, 7, 14, 21, 28, 35, 39]


def test_a_second_run_with_negative_values_is_not_dropped_by_a_logarithmic_axis(result):
    falling = replace(result, trace={"outer_value": np.geomspace(10.0, 1e-3, 40)})
    negative = replace(result, trace={"outer_value": np.linspace(1.0, -1.0, 40)})
    axes = bl.plot.trace(falling, "outer_value", label="one")
    assert axes[0].get_yscale() == "log"
    bl.plot.trace(negative, "outer_value", label="other", ax=axes)
    assert axes[0].get_yscale() == "linear"
    assert axes[0].get_ylim()[0] <= -1.0


def test_panels_are_logarithmic_where_numbers_are_positive_and_of_different_sizes(result):
    wide, signed = 10.0 ** -np.arange(40), np.linspace(-1, 100, 40)
    changed = replace(result, trace={"wide": wide, "signed": signed, "narrow": 1 + wide})
    assert [one.get_yscale() for one in bl.plot.trace(changed)] == ["log", "linear", "linear"]


def test_several_runs_go_into_the_same_axes_under_their_names(result, thinned):
    axes = bl.plot.trace(result, label="one")
    again = bl.plot.trace(thinned, label="other", ax=axes)
    assert list(again) == list(axes)
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["one", "other"]
    colors = {line.get_color() for line in axes[0].get_lines()}
    assert len(colors) == 2


@pytest.mark.parametrize(("code", "mark"), [(bl.Code.DIVERGED, "X"), (bl.Code.INTERRUPTED, "d")])
def test_a_run_that_was_cut_short_is_marked_where_it_ends(result, code, mark):
    axes = bl.plot.trace(replace(result, status=bl.Status(code, "…"), halvings=((7, 0.5, 1.0),)))
    line, end, halved = axes[0].get_lines()
    assert end.get_marker() == mark
    assert (end.get_xdata()[0], end.get_ydata()[0]) == (39, line.get_ydata()[-1])
    assert list(halved.get_xdata()) == [7, 7]


def test_one_row_is_a_point_and_numbers_that_are_never_finite_are_said_to_be(result):
    one = replace(result, steps=1, trace={"outer_value": np.array([2.0]), "lost": np.array([np.nan])})
    first, second = bl.plot.trace(one)
    assert first.get_lines()[0].get_marker() == "o"
    assert [text.get_text() for text in second.texts] == ["finite at no step"]
    first.figure.canvas.draw()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.finfo(float).max])
def test_a_column_of_nothing_but_the_largest_numbers_can_be_drawn(result, value):
    (ax,) = bl.plot.trace(replace(result, trace={"outer_value": np.full(40, value)}))
    ax.figure.canvas.draw()
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), value)


@pytest.mark.parametrize("values", [[1.0, 1 + 2e-16], [1e17, 1e17], [0.0, 0.0]])
def test_weights_that_differ_by_rounding_alone_can_be_drawn(values):
    counts = [bar.get_height() for bar in bl.plot.weights(np.array(values)).patches]
    assert sum(counts) == 2


def test_threads_leave_the_settings_as_they_were(result):
    before = dict(mpl.rcParams)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: bl.plot.trace(result, "outer_value"), range(6)))
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_near_the_largest_there_are_can_be_drawn(result, sign):
    huge = sign * np.geomspace(1, 1e305, 40)
    (ax,) = bl.plot.trace(replace(result, trace={"outer_value": huge}))
    ax.figure.canvas.draw()
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), huge)


def test_few_hyperparameters_are_lines_and_many_are_bands_between_percentiles(result):
    lines = bl.plot.hyperparameters(result, transform=jnp.exp).get_lines()
    for i, line in enumerate(lines):
        np.testing.assert_allclose(line.get_ydata(), np.exp(result.trace["x"][:, i]), rtol=1e-14)
    assert [line.get_label() for line in lines] == ["[0]", "[1]"]

    many = result.trace["many"].reshape(40, 10)
    ax = bl.plot.hyperparameters(result, "many")
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), np.median(many, axis=1))
    for band, (low, high) in zip(ax.collections, [(0, 100), (10, 90), (25, 75)], strict=True):
        edges = band.get_paths()[0].get_extents()
        assert edges.y0 == pytest.approx(np.percentile(many, low, axis=1).min())
        assert edges.y1 == pytest.approx(np.percentile(many, high, axis=1).max())


def test_entries_have_the_names_that_are_given(result):
    tree = {"decay": result.trace["x"][:, 0], "mix": result.trace["x"]}
    named = lambda ax: [text.get_text() for text in ax.get_legend().get_texts()]
    assert named(bl.plot.hyperparameters(tree)) == ["decay", "mix[0]", "mix[1]"]
    assert named(bl.plot.hyperparameters(tree, labels=["p", "q", "r"])) == ["p", "q", "r"]
    ten = [str(i) for i in range(10)]
    assert named(bl.plot.hyperparameters(result, "many", labels=ten)) == ten


def test_weights_are_counted_by_group():
    ax = bl.plot.weights(SPREAD, GROUPS)
    for bars, group in zip(ax.containers, "ab", strict=True):
        counts, _ = np.histogram(SPREAD[group == GROUPS], 40, (0, 1))
        assert [bar.get_height() for bar in bars] == list(counts)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a (3)", "b (2)"]
    assert all(tick == round(tick) for tick in ax.get_yticks())  # there is no half of an example


def test_the_weights_of_a_result_are_its_x(result):
    (bars,) = bl.plot.weights(result, transform=lambda x: 2 * x).containers
    edges = [bar.get_x() for bar in bars] + [bars[-1].get_x() + bars[-1].get_width()]
    assert edges[0] == pytest.approx(2 * float(result.x.min()))
    assert edges[-1] == pytest.approx(2 * float(result.x.max()))


@pytest.mark.slow
def test_the_best_lane_is_thick_and_one_that_diverged_ends_in_a_cross(found):
    ax = bl.plot.sweep(found)
    lines = {line.get_label(): line for line in ax.get_lines()}
    best = f"outer {(0.01, 0.1)[found.best]:g} (best)"
    assert lines[best].get_linewidth() == max(line.get_linewidth() for line in lines.values())
    np.testing.assert_array_equal(lines[best].get_ydata(), found.trace["outer_value"][found.best])
    broken = lines["outer 1e+30 (diverged)"]
    assert len(broken.get_ydata()) == found.steps[2] < 20
    (cross,) = (line for line in ax.get_lines() if line.get_marker() == "X")
    assert cross.get_xdata()[0] == found.steps[2] - 1
    low, high = ax.get_ylim()
    others = found.trace["outer_value"][:2]
    assert low < others.min() < others.max() < high < 1e4  # the third would make one line of the others
    assert low < cross.get_ydata()[0] <= high


def test_a_sweep_is_drawn_by_what_chose_the_best_lane(found, ax):
    drawn = lambda metric, *name: bl.plot.sweep(replace(found, metric=metric), *name, ax=ax).get_ylabel()
    assert drawn("hypergradient_norm") == "hypergradient"
    assert drawn("hypergradient_norm", "outer_value") == "outer value"
    assert drawn("<lambda>") == "outer value"  # of a function of (x, y) there is no column


def test_lanes_by_the_names_given_and_the_largest_first_where_that_is_best(found):
    upside_down = replace(found, best=0, scores=np.array([2.0, 1.0, np.nan]))
    legend = bl.plot.sweep(upside_down, labels=["a", "b", "c"]).get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["a (best)", "b", "c (diverged)"]


@pytest.mark.parametrize("beta", [None, 1e-4])
def test_the_curve_of_a_certificate_is_its_bound(beta):
    aid = bl.theory.aid(bl.theory.Constants(0.5, 1.0, 1.0, 0.1))
    norms = np.array([3.0, 1.0, 2.0])
    ax = bl.plot.certificate({"AID": aid}, steps=50, gap=2.0, y_error=0.3, beta=beta, measured=norms)
    bound, measured = ax.get_lines()
    for step, value in zip(bound.get_xdata(), bound.get_ydata(), strict=True):
        assert value == pytest.approx(aid.bound(int(step), 2.0, 0.3, None, beta))
    assert set(bound.get_xdata()) == set(range(1, 51))
    assert list(measured.get_ydata()) == pytest.approx([9.0, 5.0, 14 / 3])


def test_the_caller_s_axes_are_drawn_into_and_no_setting_changes(result, found, ax):
    before = dict(mpl.rcParams)
    aid = bl.theory.aid(bl.theory.Constants(0.5, 1.0, 1.0, 0.1))
    assert bl.plot.trace(result, ["outer_value"], ax=ax)[0] is ax
    assert bl.plot.hyperparameters(result, ax=ax) is ax
    assert bl.plot.weights(SPREAD, ax=ax) is ax
    assert bl.plot.sweep(found, ax=ax) is ax
    assert bl.plot.certificate(aid, steps=5, gap=1.0, ax=ax) is ax
    assert dict(mpl.rcParams) == before


def test_new_figures_are_pyplot_s_only_where_it_is_in_use(result, monkeypatch):
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot")
    assert bl.plot.trace(result)[0].figure.canvas.manager is None
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    figure = bl.plot.trace(result)[0].figure
    assert pyplot.fignum_exists(figure.number)
    pyplot.close(figure)


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda r, f: bl.plot.trace(f), r"pass result = bl.run\(...\), or a lane of a sweep, found\[0\]"),
        (lambda r, f: bl.plot.trace(r, ["loss"]), r"names must be some of outer_value, .* not \['loss'\]"),
        (lambda r, f: bl.plot.trace(r, []), "names must be some of"),
        (lambda r, f: bl.plot.trace(replace(r, steps=0, trace={})), "without a step .*: run it longer"),
        (lambda r, f: bl.plot.trace(r, ax=Figure().subplots()), "ax has 1 panels for 3 to draw"),
        (lambda r, f: bl.plot.trace(r, ax="here"), "ax must be axes of matplotlib, not 'here'"),
        (lambda r, f: bl.plot.hyperparameters(r, "z"), "name='z' is no column .* record it"),
        (lambda r, f: bl.plot.hyperparameters(r, labels=["a"]), "labels must be a list of 2 names"),
        (lambda r, f: bl.plot.hyperparameters(r, transform=jnp.sum), "what transform returns must be"),
        (
            lambda r, f: bl.plot.weights({"decay": SPREAD, "a": SPREAD}, transform=jax.nn.sigmoid),
            r"pass e\.g\. lambda x: jax\.nn\.sigmoid\(x\['a'\]\)",
        ),
        (lambda r, f: bl.plot.weights([]), "values must be one array with a weight per example"),
        (
            lambda r, f: bl.plot.weights(SPREAD, [0, 1]),
            r"groups must be .* one for each of 5 weights, not \[0, 1\]",
        ),
        (
            lambda r, f: bl.plot.weights(np.arange(9.0), np.arange(9)),
            "groups has 9 different ones, of which 7",
        ),
        (lambda r, f: bl.plot.weights(np.array([1.0, np.nan])), "values has 1 NaN or infinite weights of 2"),
        (lambda r, f: bl.plot.weights(np.array([-1e308, 1e308])), "too far to draw: leave some out"),
        (lambda r, f: bl.plot.hyperparameters(np.ones((5, 0))), "values must be a bl.Result, or arrays"),
        (lambda r, f: bl.plot.trace(r, "outer_value", ax=removed()), "ax was removed from its figure"),
        (lambda r, f: bl.plot.sweep(r), r"pass found = bl.sweep\(...\)"),
        (lambda r, f: bl.plot.sweep(f, "loss"), "name must be one of outer_value"),
        (lambda r, f: bl.plot.certificate(r, steps=1, gap=1.0), "certificates must be a certificate"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_value_and_the_fix(
    result, found, as_users_see_it, draw, said
):
    with pytest.raises((TypeError, ValueError), match=said):
        draw(result, found)


def test_a_step_size_beyond_the_certificate_is_refused():
    aid = bl.theory.aid(bl.theory.Constants(0.5, 1.0, 1.0, 0.1))
    with pytest.raises(
        ValueError, match=r"nothing is certified by 'certified' with .*beta=9\.0: its beta_max is"
    ):
        bl.plot.certificate(aid, steps=5, gap=1.0, beta=9.0)


def test_dollars_in_the_name_of_a_metric_are_no_formula(result):
    name = "cost in $, of ^$"
    drawn = bl.plot.trace(replace(result, trace={**result.trace, name: np.arange(40.0)}), names=[name])
    drawn[0].figure.canvas.draw()
    assert drawn[0].get_ylabel() == name
