"""The comparison of a page with the output of its code finds differences."""

import json

import matplotlib
import pages
import pytest
from pages import Part, differs, parts
from running import run

from bilevel.plot.style import look

PAGE = """
```python
print(1 / 3)
```
```text
0.33
```

Prose in between.

```text
no output of anything
```

```sh
bilevel --version
```

```output
bilevel ...
```
"""


def test_what_a_block_prints_stands_directly_below_it(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    assert parts("page.md") == [
        Part("python", "print(1 / 3)\n", 2, "0.33\n"),
        Part("text", "no output of anything\n", 11),
        Part("sh", "bilevel --version\n", 15, "bilevel ...\n"),
    ]


def test_a_notebook_s_cells_are_its_parts(tmp_path, monkeypatch):
    printed = {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["print(1)\n", "print(2)"], "outputs": [printed]},
        {"cell_type": "code", "source": ["x = 1"], "outputs": []},
    ]
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "page.ipynb").write_text(json.dumps({"cells": cells}))
    assert parts("page.ipynb") == [
        Part("python", "print(1)\nprint(2)", 2, "1\n2\n"),
        Part("python", "x = 1", 3),
    ]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("loss 0.123", "loss 0.1239"),
        ("loss 0.123", "loss 0.122"),
        ("1.2e-05", "1.3e-05"),
        ("-1.50 and 2,000", "-1.51   and\n2,000\n"),
        ("after 0.2 s\n...\nend", "after 0.2 s\nthis\nthat\nend"),
        ("took ... s", "took 12.5 s"),
        ("[0.50 -1.0]", "[ 0.5  -1.0000 ]"),
        ("first ... lane 0.18", "first\nlane 18.2\nlane 0.182"),
        ("1,970 of 2.0 ...", "1,970 of 2.01 and more"),
    ],
)
def test_these_are_the_same(shown, printed):
    assert differs(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("loss 0.123", "loss 0.125"),
        ("after 100 steps", "after 101 steps"),
        ("1.2e-05", "1.2e-04"),
        ("1.50", "-1.50"),
        ("x0 = 1.0", "x1 = 1.0"),
        ("0.5", "nan"),
        ("one line", "one line\nand another"),
        ("took ... s", "took 12.5 min"),
        ("ends in ... 7", "ends in 17"),
        ("1.5 ...", "1.52e-3"),
        ("", "something"),
    ],
)
def test_these_are_not(shown, printed):
    assert differs(shown, printed) is not None


@pytest.mark.slow
def test_parts_of_a_page_share_names_files_and_commands_but_no_process(tmp_path):
    write = Part("python", "value = 3\nopen('file', 'w').write(__name__)", 4)
    read = Part("python", "print(value, open('file').read())", 8)
    assert run([write, read, Part("sh", "bilevel --version  # which")], tmp_path)[1:] == [
        "3 __main__\n",
        f"bilevel {__import__('bilevel').__version__}\n",
    ]
    with pytest.raises(AssertionError, match=r'"page", line 9.*\n.*\n*.*NameError'):
        run([read], tmp_path)
    with pytest.raises(AssertionError, match="ended its process with status 3"):
        run([Part("python", "import os; os._exit(3)")], tmp_path)
    with pytest.raises(AssertionError, match="ended with status 2"):
        run([Part("sh", "bilevel nonsense")], tmp_path)


def test_a_backend_loaded_by_the_first_picture_stays_interactive():
    """Otherwise a notebook shows only its first picture."""
    was = matplotlib.is_interactive()
    try:
        with look():
            matplotlib.interactive(True)
        assert matplotlib.is_interactive()
    finally:
        matplotlib.interactive(was)
