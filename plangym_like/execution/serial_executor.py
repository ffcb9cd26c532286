"""`SerialExecutor`: steps all rows in this process."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

from plangym_like.batches import Inputs
from plangym_like.execution.executor import SubmitOptions
from plangym_like.future import Future
from plangym_like.row_stepper import RowStepper
from plangym_like.stats import Stats


class SerialExecutor:
    """Steps all rows in this process, before `submit` returns.

    Parameters
    ----------
    stepper : RowStepper
        Steps the rows.
    stats : Stats, optional
        The counters to update.
    """

    n_workers: int | None = None
    isolated = False
    can_audit = True

    def __init__(self, stepper: RowStepper, stats: Stats | None = None) -> None:
        self._stepper = stepper
        self.stats = Stats() if stats is None else stats

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch; see `Executor.submit`."""
        if options.blocking:
            return self.step(inputs, options)
        if not inputs.verified:
            self._stepper.layout.verify(inputs)
            inputs.verified = True
        return Future.of(partial(self.step, inputs, options))

    def step(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch and return its result, whatever ``options.blocking`` is."""
        if not inputs.verified:
            self._stepper.layout.verify(inputs)
            inputs.verified = True
        if not options.audit:
            self.stats.begin(inputs.count)
        stepper = self._stepper.for_audits() if options.audit else self._stepper
        begun = time.perf_counter()
        result = stepper.run_batch(
            inputs,
            states=options.states,
            observations=options.observations,
            masked=options.masked,
            audit=options.audit,
        )
        if not options.audit:
            self.stats.seconds_here += time.perf_counter() - begun
        return result

    def close(self) -> None:
        """Do nothing: the environment closes its simulator."""


class SerialOptions:
    """Makes a `SerialExecutor`."""

    n_workers: int | None = None
    isolated = False

    def prepare(self) -> None:
        """Do nothing."""

    def trials(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing: this process runs the trial."""
        return contextlib.nullcontext()

    def make(self, stepper: RowStepper) -> SerialExecutor:
        """Return the executor."""
        return SerialExecutor(stepper)
