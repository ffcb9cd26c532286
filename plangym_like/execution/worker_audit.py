"""The audit of batches that are stepped by workers alone, with no environment in this process."""

from __future__ import annotations

import warnings
from typing import Any

from plangym_like.audit.auditor import EVERY, Auditor
from plangym_like.batches import Layout
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.states import Row
from plangym_like.stats import Stats


def auditor_of(worker: ExternalProcess, layout: Layout, mode: str, stats: Stats) -> Auditor:
    """Return an auditor for the environment that `worker` and its like host."""

    def state_difference(one: Row, other: Row) -> Any:
        return worker.call("state_difference", one, other)()

    def warn(note: str) -> None:
        warnings.warn(note, RuntimeWarning, stacklevel=5)

    return Auditor(layout, worker.name, state_difference, warn, mode=mode, every=EVERY, stats=stats)
