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
    """

    n_workers: int | None = None
    isolated = False

    def __init__(self, stepper: RowStepper) -> None:
        self._stepper = stepper
        self.stats = Stats()

    def submit(self, inputs: Inputs, options: SubmitOptions) -> Any:
        """Step a batch; see `Executor.submit`."""
        if not inputs.verified:
            self._stepper.layout.verify(inputs)
        if not options.audit:
            self.stats.begin(inputs.count)
        if options.blocking:
            return self._run(inputs, options)
        return Future.of(partial(self._run, inputs, options))

    def _run(self, inputs: Inputs, options: SubmitOptions) -> Any:
        stepper = self._stepper.for_audits() if options.audit else self._stepper
        begun = time.perf_counter()
        result = stepper.run_batch(
            inputs,
            states=options.states,
            observations=options.observations,
            masked=options.masked,
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
