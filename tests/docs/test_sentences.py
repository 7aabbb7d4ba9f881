"""Every figure in a sentence of a page has an origin in the ledger, and agrees with it."""

from collections import Counter

import pytest
from ledger import CLAIMS
from origins import About, AtLeast, AtMost, agrees
from sentences import Figure, figures, prose
from test_documented import PAGES

ROWS = [(page, fragment) for page, claims in CLAIMS.items() for fragment in claims]


def within(page: str, fragment: str) -> list[Figure]:
    start = prose(page).find(fragment)
    assert start >= 0, f"{page} has no {fragment!r} any more"
    return [each for each in figures(page) if start <= each.start and each.end <= start + len(fragment)]


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_of_a_page_is_in_one_row_of_the_ledger(page):
    text, claims = prose(page), CLAIMS.get(page, {})
    for fragment in claims:
        assert text.count(fragment) == 1, f"{page} has {fragment!r} {text.count(fragment)} times"
    answered = Counter(each for fragment in claims for each in within(page, fragment))
    for each in figures(page):
        where = f"{page} has {text[max(0, each.start - 60) : each.end + 30]!r}"
        assert each.plain or answered[each], f"{where}: give {each.shown} an origin in tests/docs/ledger"
        assert answered[each] < 2, f"{where}, in two rows of tests/docs/ledger"


@pytest.mark.parametrize(("page", "fragment"), ROWS)
def test_a_figure_is_what_its_origin_says(page, fragment):
    origin, shown = CLAIMS[page][fragment], within(page, fragment)
    assert any(not each.plain for each in shown), "no figure here needs an origin"
    assert all(each.unit in fragment for each in shown), (
        "the fragment must include the unit: 13 s are not 13 ms"
    )
    values = origin() if callable(origin) else origin
    values = values if isinstance(values, tuple) else (values,)
    for each, value in zip(shown, values, strict=True):
        assert agrees(each, value), f"{page} has {each.shown} {each.unit}, but it is {value}"


def test_every_page_of_the_ledger_exists():
    assert set(CLAIMS) <= set(PAGES)


def read(text: str, monkeypatch) -> list[Figure]:
    monkeypatch.setattr("sentences.prose", lambda page: text)
    return [each for each in figures.__wrapped__("page") if not each.plain]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("took 1,024 steps of 0.02 each", [1024, 0.02]),
        ("3 to 13 % of 10⁻³, or 5·10⁻⁴", [0.03, 0.13, 1e-3, 5e-4]),
        (r"$\beta L_\Phi=0.25$ and $|x|\le2\cdot10^{-6}$, from $-0.566$", [0.25, 2e-6, -0.566]),
        ("2.5 times in 8 s, 91.6 million, 1e-5", [2.5, 8, 91.6e6, 1e-5]),
        (
            "**13** %, 2, 3, and 4 %, 10-fold, 2.5x, 3x, 8ms, 1.5κ, 3 thousand",
            [0.13, 0.02, 0.03, 0.04, 10, 2.5, 3, 8, 1.5, 3e3],
        ),
        (r"κ = 5000 in 2024, $12\,\%$ of $2s$, $\tfrac12x$", [5000, 0.12]),
        ("`μ = 0.1`, printed as `(5,000 images)`", [0.1, 5000]),
        ("Theorems 5.9 and 5.17, Python 3.11, CC BY-SA 3.0, version 0.7.3, `rate=0.1`, 3 × 3, two of 24", []),
        (r"$\kappa^{2.5}$, $2\kappa^4$, $3\times3$ and κ⁴", []),
    ],
)
def test_what_is_a_figure(text, values, monkeypatch):
    assert [each.value for each in read(text, monkeypatch)] == pytest.approx(values)


def test_which_words_are_the_pages_own(tmp_path, monkeypatch):
    """Notes and captions count; code, tables and included files do not; a line with |x| in it is no table."""
    page = "0.1\n\n```{note}\n0.2\n```\n```python\n0.3\n```\n| 0.4 |\n|x| < 0.5\n# 0.6\n> 0.7\n- 0.8[^1]\n\n[^1]: 0.9\n"
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr("sentences.ROOT", tmp_path)
    assert [each.shown for each in figures("page.md")] == ["0.1", "0.2", "0.5", "0.6", "0.7", "0.8", "0.9"]


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (
            "0.25",
            [0.25, 0.2549, AtMost(0.2), AtLeast(0.3), About(0.26)],
            [0.256, AtMost(0.26), AtLeast(0.24)],
        ),
        ("13 %", [0.13, 0.1349, AtMost(0.12)], [0.136, AtMost(0.14), About(0.2), 13]),
        ("1,000", [1000], [1001, 999]),
    ],
)
def test_what_agrees(text, right, wrong, monkeypatch):
    (figure,) = read(text, monkeypatch)
    assert all(agrees(figure, value) for value in right)
    assert not any(agrees(figure, value) for value in wrong)
