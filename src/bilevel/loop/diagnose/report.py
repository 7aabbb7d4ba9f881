"""Report of a diagnosis: sentences with a remedy, above a table of the looks."""

import html
import textwrap
from dataclasses import dataclass

import numpy as np

from bilevel.words import printable

SHOWN = (  # columns of a look in a printed diagnosis
    "inner_residual", "inner_distance", "adjoint_residual", "condition", "hypergradient_error", "inner_error",
    "stationarity", "moved",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """Notable fact about a run: a code for programs, a sentence with the remedy for people."""

    code: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Observations of `bl.hooks.Diagnose`: `print` it.

    `findings` is empty if there are none. `looks` has columns by name, with one row per look, and NaN for
    numbers that could not be measured.
    """

    findings: tuple[Finding, ...]
    looks: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()  # failed looks, with the reasons
    name: str = ""  # the solver's

    def __str__(self) -> str:
        return printable(self._text())

    def _text(self) -> str:
        steps = self.looks["step"]
        sentences: dict[str, list[str]] = {}  # two large step sizes have the same one
        for each in self.findings:
            sentences.setdefault(each.sentence, []).append(each.code)
        wrapped = lambda text: textwrap.fill(text, 88, initial_indent="  - ", subsequent_indent="    ")
        lines = [wrapped(f"{', '.join(codes)}: {sentence}") for sentence, codes in sentences.items()]
        lines = lines or ["  nothing stands out." if len(steps) else "  nothing could be seen."]
        lines += [f"  ({note})" for note in (*self.notes, *self._not_judged())]
        if len(steps):
            chosen = sorted(set(np.linspace(0, len(steps) - 1, 4).round().astype(int)))
            shown = [name for name in SHOWN if np.isfinite(self.looks.get(name, np.nan)).any()]
            row = lambda name, cells: f"  {name:<20}" + "".join(f"{cell:>11}" for cell in cells)
            number = lambda value: "-" if np.isnan(value) else f"{value:.3g}"
            lines.append(row("step", (f"{steps[i]:.0f}" for i in chosen)))
            lines += [row(name, (number(self.looks[name][i]) for i in chosen)) for name in shown]
        return "\n".join([f"Diagnosis of {self.name} from {self._count()}:", *lines])

    def _not_judged(self) -> list[str]:
        """Return the facts that minibatches cannot show, because the errors of one batch are always large."""
        noisy = len(self.looks["step"]) and self.looks.get("noisy", np.zeros(1))[-1]
        found = {each.code for each in self.findings}
        lags = "whether y lags" if "adjoint_lags" in found else "whether y or v lags"
        what = f"{lags} is" if found & {"outer_step", "outer_grows"} else f"{lags}, and the outer step, are"
        return [f"on minibatches: {what} not judged"] if noisy else []

    def _count(self) -> str:
        count = len(self.looks["step"])
        return f"{count} look{'s' * (count != 1)}"

    def __repr__(self) -> str:
        codes = ", ".join(each.code for each in self.findings) or "nothing stands out"
        return f"Diagnosis({codes}; {self._count()})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text())}</pre>"
