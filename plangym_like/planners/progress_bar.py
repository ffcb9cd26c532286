"""`ProgressBar`: the progress of a search on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import isnan
from typing import Any

from plangym_like.planners.search import Progress
from plangym_like.support.lazy_imports import needs_extra

_LAYOUT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"


class ProgressBar:
    """A context manager that returns a function to show a `Progress`, or None to show nothing.

    Parameters
    ----------
    name : str
        The text before the bar.
    progress : bool or callable
        As in `Planner.plan`.

    Raises
    ------
    MissingExtraError
        tqdm is needed, but is not installed.
    """

    def __init__(self, name: str, progress: bool | Callable[[Progress], object]) -> None:
        self._name, self._progress = name, progress
        self._bar: Any = None

    def __enter__(self) -> Callable[[Progress], object] | None:
        if callable(self._progress):
            return self._progress
        if not self._progress or not sys.stderr.isatty():
            return None
        with needs_extra("a progress bar needs tqdm", "viz"):
            from tqdm import tqdm
        self._bar = tqdm(total=1.0, desc=self._name, bar_format=_LAYOUT, mininterval=0.2)
        return self._show

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _show(self, progress: Progress) -> None:
        spent = progress.spent
        rate = spent.transitions / max(spent.seconds, 1e-9)
        note = f", {progress.note}" if progress.note else ""
        score = "no score yet" if isnan(progress.score) else f"score {progress.score:,.6g}"
        self._bar.set_postfix_str(f"{score}, {rate:,.0f} transitions/s{note}", refresh=False)
        self._bar.update(progress.done - self._bar.n)
