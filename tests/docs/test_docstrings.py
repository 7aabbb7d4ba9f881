"""What the site makes of a docstring: Markdown in, reStructuredText out."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "docs" / "_sphinx" / "docstrings.py"
SPEC = importlib.util.spec_from_file_location("docstrings", PATH)
docstrings = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(docstrings)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("`x` and `bl.run`\nhere.", "``x`` and ``bl.run``\nhere."),
        ("two `step`s, (`y`)", r"two ``step``\ s, (``y``)"),
        ("y*(x) where |v| ≤ 1, coef_ and x_k", r"y\*(x) where \|v\| ≤ 1, coef\_ and x_k"),
        ("**Proven.** of *one* task", "**Proven.** of *one* task"),
        ("`y*(x)` and y*", r"``y*(x)`` and y\*"),
        ("see [this](https://a.b/c)", "see `this <https://a.b/c>`__"),
        ("* one\n  of it\n* two", "- one\n  of it\n- two"),
    ],
)
def test_prose(written, read):
    assert docstrings.translated(written) == read


def test_indented_paragraphs_are_code_of_their_language():
    text = "A step:\n\n    y_{k+1} = y_k − α*g\n\nUse:\n\n    bl.run(a, *b)\n\n    print(1)\n\nEnd."
    blocks = docstrings.translated(text).split("\n\n")
    assert blocks[1:3] == [".. code-block:: text", "   y_{k+1} = y_k − α*g"]
    assert blocks[4:8] == [
        *(".. code-block:: python", "   bl.run(a, *b)"),
        *(".. code-block:: python", "   print(1)"),
    ]


def test_what_is_indented_below_a_section_is_no_code():
    text = "It is.\n\nArgs:\n    x0: where x* starts.\n\n    y0: likewise.\n\nMore.\n\n    code(x)"
    made = docstrings.translated(text)
    assert r"    x0: where x\* starts." in made
    assert made.count("code-block") == 1
    assert made.endswith("   code(x)")


def test_names_of_attributes_stay_as_they_are():
    made = docstrings.translated("Attributes:\n    coef_, alpha_: of y*, not of coef_.")
    assert made == "Attributes:\n    coef_, alpha_: of y\\*, not of coef\\_."
