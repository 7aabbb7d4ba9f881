"""Report of a diagnosis: sentences with a remedy, above a table of the looks."""

import html
import math
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevel.words import printable

SHOWN = (  # columns of a look in a printed diagnosis
    "inner_residual",
    "inner_distance",
    "adjoint_residual",
    "condition",
    "hypergradient_error",
    "inner_error",
    "stationarity",
    "moved",
)


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
        lines = [f"Diagnosis of {self.name} from {_looks(steps)}:"]
        wrapped = lambda text: textwrap.fill(text, 88, initial_indent="  - ", subsequent_indent="    ")
        lines += [wrapped(each) for each in self._sentences()] or [
            "  nothing stands out." if len(steps) else "  nothing could be seen."
        ]
        lines += [f"  ({note})" for note in (*self.notes, *self._not_judged())]
        if len(steps):
            chosen = sorted(set(np.linspace(0, len(steps) - 1, 4).round().astype(int)))
            shown = [name for name in SHOWN if np.isfinite(self.looks.get(name, np.nan)).any()]
            lines.append(f"  {'step':<20}" + "".join(f"{steps[i]:>11.0f}" for i in chosen))
            lines += [
                f"  {name:<20}" + "".join(f"{_number(self.looks[name][i]):>11}" for i in chosen)
                for name in shown
            ]
        return "\n".join(lines)

    def _sentences(self) -> list[str]:
        """Return each sentence once: two large step sizes have the same one."""
        codes: dict[str, list[str]] = {}
        for each in self.findings:
            codes.setdefault(each.sentence, []).append(each.code)
        return [f"{', '.join(names)}: {sentence}" for sentence, names in codes.items()]

    def _not_judged(self) -> list[str]:
        """Return the facts that minibatches cannot show, because the errors of one batch are always large."""
        noisy = len(self.looks["step"]) and self.looks.get("noisy", np.zeros(1))[-1]
        found = {each.code for each in self.findings}
        lags = "whether y lags" if "adjoint_lags" in found else "whether y or v lags"
        what = f"{lags} is" if found & {"outer_step", "outer_grows"} else f"{lags}, and the outer step, are"
        return [f"on minibatches: {what} not judged"] if noisy else []

    def __repr__(self) -> str:
        codes = ", ".join(each.code for each in self.findings) or "nothing stands out"
        return f"Diagnosis({codes}; {_looks(self.looks['step'])})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text())}</pre>"


def _looks(steps: np.ndarray) -> str:
    return "1 look" if len(steps) == 1 else f"{len(steps)} looks"


def _number(value: Any) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"
