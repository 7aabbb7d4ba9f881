"""What several seeds say together."""

import statistics
from dataclasses import replace

import pytest

from bilevel.applications import MODULES, Application, Outcome, application
from bilevel.applications.table import as_csv, as_markdown, best, cells

ONE = Outcome({"ours": {"loss": 1.0, "accuracy": 0.5}, "theirs": {"loss": 3.0}})
TWO = Outcome({"ours": {"loss": 2.0, "accuracy": 0.75}, "theirs": {"loss": 3.5}})
NOTHING = lambda *_: None
EXAMPLE = Application("example", "an example", NOTHING, 10, NOTHING, NOTHING, better=("accuracy",))


def test_means_and_spreads():
    table = cells([ONE, TWO])
    assert table["ours"]["loss"] == (1.5, statistics.stdev([1.0, 2.0]))
    assert table["theirs"] == {"loss": (3.25, statistics.stdev([3.0, 3.5]))}
    assert cells([ONE])["ours"]["accuracy"] == (0.5, None)


def test_the_best_is_the_one_the_measure_says():
    table = cells([ONE, TWO])
    assert best(EXAMPLE, table, "loss") == "ours"
    upside = Application("example", "an example", NOTHING, 10, NOTHING, NOTHING, better=("loss",))
    assert best(upside, table, "loss") == "theirs"
    assert best(EXAMPLE, table, "accuracy") is None  # of one
    assert best(EXAMPLE, cells([Outcome({"a": {"loss": 1.0}, "b": {"loss": 1.0}})]), "loss") is None


def test_markdown_and_csv():
    text = as_markdown(EXAMPLE, [ONE, TWO])
    assert text.splitlines()[0] == "| method | loss | accuracy |"
    assert text.splitlines()[-1] == "| theirs | 3.250 ± 0.354 | – |"
    assert "**1.500 ± 0.707**" in text
    assert as_csv([0, 1], [ONE, TWO]).splitlines()[1:3] == ["0,ours,loss,1.0", "0,ours,accuracy,0.5"]


def test_a_measure_that_only_describes_has_no_best():
    of_size = replace(EXAMPLE, neutral=("size",))
    outcomes = [Outcome({"ours": {"loss": 1.0, "size": 2.0}, "theirs": {"loss": 3.0, "size": 4.0}})]
    assert "| ours | **1.000** | 2.000 |" in as_markdown(of_size, outcomes)
    assert "| ours | **1.000** | **2.000** |" in as_markdown(EXAMPLE, outcomes)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (1.5e12, "1.5e+12"),
        (1234.56, "1235"),
        (123.456, "123"),
        (-12.3456, "-12.3"),
        (1.23456, "1.235"),
        (0.123456, "0.123"),
        (0.0123456, "0.0123"),
        (1e-9, "1e-09"),
        (0.0, "0"),
        (float("nan"), "nan"),
    ],
)
def test_digits_are_those_of_the_largest_mean(loss, text):
    page = as_markdown(EXAMPLE, [Outcome({"ours": {"loss": loss}, "theirs": {"loss": -loss / 1e5}})])
    assert text in page
    assert "-0.0" not in page


def test_what_is_shown_as_equal_is_not_better():
    assert best(EXAMPLE, cells([Outcome({"a": {"loss": 1.0}, "b": {"loss": 1.0001}})]), "loss") is None


def test_measures_that_begin_alike_are_a_table_of_their_own():
    one = Outcome(
        {
            "ours": {"loss": 1.0, "AUC, much": 0.5, "AUC, little": 0.75, "alone, as is": 3.0},
            "theirs": {"loss": 2.0},
        }
    )
    assert as_markdown(EXAMPLE, [one]).splitlines() == [
        "| method | loss | alone, as is |",
        "| --- | --- | --- |",
        "| ours | **1.000** | 3.000 |",
        "| theirs | 2.000 | – |",
        "",
        "| AUC | much | little |",
        "| --- | --- | --- |",
        "| ours | 0.500 | 0.750 |",
    ]


def test_an_unknown_application_is_refused():
    with pytest.raises(ValueError, match="there is no application 'cooking': take one of"):
        application("cooking")


@pytest.mark.parametrize("name", MODULES)
def test_names_agree(name):
    assert application(name).name == name
    assert application(name).title


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODULES if name != "few-shot-omniglot"])
def test_tasks_have_a_yardstick(name):
    task = application(name).task(0)
    assert task.name == name
    assert callable(task.measure)
    assert task.label
