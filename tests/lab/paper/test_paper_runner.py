"""Resuming: what is there and still true is not run again; everything else is."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import bilevel
from bilevel.data import Examples
from bilevel.lab.paper import manifest
from bilevel.lab.paper.experiment import Experiment, Options
from bilevel.lab.paper.runner import perform, prepare


def silent(done: float, doing: str = "") -> None:
    pass


def experiment(values=(1.0, 2.0), shift: float = 0.0) -> Experiment:
    return Experiment(
        name="toy",
        title="Toy",
        tables=("toy.csv",),
        settings=lambda options: {"values": list(values), "seeds": options.seeds},
        run=lambda settings, inputs, report: {
            "toy.csv": {"value": np.array(settings["values"]) + inputs.inputs.sum()}
        },
        load=lambda options: Examples(np.full((1, 1), shift), np.zeros(1), "made up"),
    )


@pytest.fixture
def finished(tmp_path):
    perform(prepare(experiment(), Options(), tmp_path), silent)
    return tmp_path


def test_what_is_there_is_done(finished):
    assert prepare(experiment(), Options(), finished).done
    assert (finished / "toy.csv").read_text() == "value\n1\n2\n"


def test_a_shorter_run_knows_that_it_would_replace_the_full_one(finished, tmp_path):
    other = prepare(experiment(), Options(seeds=1), finished)
    assert other.shortens
    assert not prepare(experiment(), Options(), finished).shortens  # it is the full one
    assert not prepare(experiment(), Options(seeds=1), finished / "empty").shortens
    perform(other, silent)
    assert not prepare(experiment(), Options(seeds=2), finished).shortens  # what is there is no full one


def test_the_manifest_names_source_and_time_but_the_table_does_not(finished):
    found = json.loads((finished / "toy.json").read_text())
    assert found["source"] == "made up"
    assert found["seconds"] >= 0
    assert found["origin"]["settings"] == {"values": [1.0, 2.0], "seeds": None}


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        (experiment(values=(1.0, 3.0)), Options()),
        (experiment(shift=0.5), Options()),  # other data
        (experiment(), Options(seeds=7)),
    ],
)
def test_other_settings_or_data_are_not_done(finished, changed, options):
    assert not prepare(changed, options, finished).done


def test_other_code_is_not_done(finished, monkeypatch):
    monkeypatch.setattr(manifest, "digest_of_code", lambda: "other")
    assert not prepare(experiment(), Options(), finished).done


@pytest.mark.parametrize("damage", [lambda p: p.write_text("value\n1\n"), lambda p: p.unlink()])
def test_a_touched_or_missing_table_is_not_done(finished, damage):
    damage(finished / "toy.csv")
    assert not prepare(experiment(), Options(), finished).done


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}", '"text"'])
def test_an_illegible_manifest_is_not_done(finished, content):
    (finished / "toy.json").write_text(content)
    assert not prepare(experiment(), Options(), finished).done


def test_a_run_that_breaks_off_vouches_for_nothing(finished):
    def interrupted(settings, inputs, report):
        raise KeyboardInterrupt

    broken = dataclasses.replace(experiment(), run=interrupted)
    with pytest.raises(KeyboardInterrupt):
        perform(prepare(broken, Options(), finished), silent)
    assert not prepare(experiment(), Options(), finished).done


def test_tables_must_be_the_promised_ones(tmp_path):
    wrong = dataclasses.replace(experiment(), tables=("other.csv",))
    with pytest.raises(RuntimeError, match=r"toy\.csv"):
        perform(prepare(wrong, Options(), tmp_path), silent)
    assert not list(tmp_path.iterdir())


def test_the_code_that_counts_is_told_by_path_and_not_by_name(tmp_path):
    """A folder of the same name elsewhere computes, and another one there only reads."""
    names = [
        "theory/claims/a.py",
        "lab/paper/claims/b.py",
        "lab/paper/fig1.py",
        "cli/c.py",
        "loop/cli.py",
        "d.py",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert manifest.computing(tmp_path) == ["d.py", "lab/paper/fig1.py", "loop/cli.py", "theory/claims/a.py"]
    root = Path(bilevel.__file__).parent
    assert all((root / folder).is_dir() for folder in manifest.READERS)
    assert "theory/constants.py" in manifest.computing(root)


def test_the_digest_of_data_depends_on_values_and_shape_only():
    one = Examples(np.arange(6.0).reshape(2, 3), np.zeros(2), "here")
    same = Examples(np.arange(6.0).reshape(2, 3), np.zeros(2), "there")
    other = Examples(np.arange(6.0).reshape(2, 3) + 1e-12, np.zeros(2), "here")
    assert manifest.digest_of_data(one) == manifest.digest_of_data(same) != manifest.digest_of_data(other)
