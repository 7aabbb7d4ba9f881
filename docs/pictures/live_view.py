"""Draws the live view of a run, as it stands two thirds of the way through the run of the page that shows it.

python docs/pictures/live_view.py [FILE]
"""

import io
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI

import bilevel as bl

PAGE = Path(__file__).parents[1] / "how-to" / "see-a-run.md"
STEPS, EVERY = 400, 50
MOMENT = 250  # the step at which it is drawn
WIDTH = 60  # characters of the terminal: so many can be read on a phone


class Camera(bl.hooks.Live):
    """A live view that is drawn on nothing: `view` is what was to be seen at the moment."""

    view: Any = None

    def begin(self, event: bl.hooks.Event) -> None:
        super().begin(event)
        self._screen = self

    def __call__(self, event: bl.hooks.Event) -> None:
        self._drawn = -1.0  # the next picture is due
        super().__call__(event)

    def show(self, view: Any) -> None:
        self.view = view if view.step == MOMENT else self.view

    def close(self) -> None:
        self._screen = None


def draw(file: Path, solver: Any, x0: Any, y0: Any, data: Any) -> None:
    camera = Camera(tol=1e-6)
    bl.run(solver, x0, y0, data=data, steps=STEPS, options=bl.RunOptions(every=EVERY), hooks=[camera])
    console = Console(record=True, width=WIDTH, height=30, file=io.StringIO(), force_terminal=True)
    console.print(camera.view)
    text = console.export_svg(title='progress="live"', theme=MONOKAI, unique_id="live")
    file.write_text(re.sub(r"@font-face \{.*?\}", "", text, flags=re.DOTALL))  # so that nothing is fetched


if __name__ == "__main__":
    names: dict[str, Any] = {}
    (first, *_) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(first, names)
    draw(Path(*sys.argv[1:] or ["run-live.svg"]), *(names[name] for name in ("solver", "x0", "y0", "data")))
