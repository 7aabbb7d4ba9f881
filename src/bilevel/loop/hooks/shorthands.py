"""Arguments of `bl.run` that are short for a hook."""

from typing import Any

from bilevel.loop.hooks.base import Hook, as_hooks
from bilevel.loop.hooks.live_view import progress_hooks
from bilevel.loop.options import RunOptions
from bilevel.words import shown


def hooks_for(
    hooks: Any, options: RunOptions, tol: Any, progress: Any, checkpoint: Any
) -> tuple[list[Hook], Any]:
    """Return the hooks, including those for the arguments, and the one among them that saves, or None."""
    views, found = progress_hooks(progress, tol), as_hooks(hooks)
    if checkpoint is not None:
        from bilevel.loop.checkpoints.hook import Checkpoint

        found.append(Checkpoint(checkpoint, save_every=options.save_every))
    elif options.save_every is not None:
        raise ValueError(
            f"save_every={shown(options.save_every)} says how often to save, but not where: pass checkpoint=folder"
        )
    savers = [hook for hook in found if hook.saves]
    if len(savers) > 1:
        raise ValueError("a run saves into one folder: pass checkpoint= or one bl.hooks.Checkpoint, not both")
    if options.probe is not None:
        from bilevel.loop.hooks.probe import Probe

        found.append(Probe(options.probe))
    if tol is not None:
        from bilevel.loop.hooks.metrics import Tolerance

        found.append(Tolerance(tol))
    found += views
    if options.diagnose:
        from bilevel.loop.diagnose.hook import Diagnose

        found.append(Diagnose())
    return found, savers[0] if savers else None
