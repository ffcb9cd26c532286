"""`BatchEnv`: a `PlanEnv` made from existing worker processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

from plangym_like import spaces
from plangym_like.audit.auditor import Auditor
from plangym_like.errors import InputError
from plangym_like.execution.placement import common_layout
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.execution.process_options import START_SECONDS, check_timeouts
from plangym_like.layout import Layout
from plangym_like.plan_env import PlanEnv
from plangym_like.processes.external_process import ExternalProcess
from plangym_like.row_stepper import RowStepper, closed
from plangym_like.states import Row
from plangym_like.stats import Stats


class BatchEnv(PlanEnv):
    """A `PlanEnv` whose batches are stepped by worker processes, all with the same environment.

    ``len(env)`` is the number of these processes, and ``env[i]`` is one of them. This process steps
    rows of batches only if `caller` is given. Methods that need a simulator in this process, such
    as `step`, make one when they are first called.

    Parameters
    ----------
    envs : sequence of ExternalProcess
        The workers.
    blocking : bool
        Accepted for compatibility with plangym; it has no effect.
    caller : PlanEnv, optional
        An environment in this process that steps rows as well.
    layout : Layout, optional
        The layout of batches; by default, the layout of `caller` or, without it, of the workers.
    step_timeout : float, optional
        Limit in seconds for one row; a worker that exceeds it is replaced.
    audit : {"raise", "warn", "off"}
        What to do when stepping a row a second time gives another result (see `make`). With
        `caller`, this option has no effect, because the audit of `caller` is used.
    start_timeout : float, optional
        Limit in seconds for a worker to make its environment; a worker that exceeds it is replaced.
        The default is 60 s if `step_timeout` is given, and otherwise no limit.

    Raises
    ------
    InputError
        The environments' spaces, infos or state formats differ, a timeout is invalid, or there is
        neither a worker nor a `caller`.

    Examples
    --------
    >>> import plangym_like
    >>> worker = ExternalProcess(lambda: plangym_like.make("CartPole-v1"))
    >>> with BatchEnv([worker]) as env:
    ...     states, obs, infos = env.reset()
    ...     env.step_batch([0, 1, 1], states[0]).rewards
    array([1., 1., 1.])
    """

    def __init__(
        self,
        envs: Sequence[ExternalProcess],
        blocking: bool = False,
        *,
        caller: PlanEnv | None = None,
        layout: Layout | None = None,
        step_timeout: float | None = None,
        audit: str = "raise",
        start_timeout: float | None = None,
    ) -> None:
        workers = list(envs)
        if not workers and caller is None:
            raise InputError("a BatchEnv needs at least one ExternalProcess")
        check_timeouts(step_timeout, start_timeout)
        limit = start_timeout
        if limit is None and step_timeout is not None:
            limit = START_SECONDS
        for worker in workers:
            worker.wait_ready(limit)
        if layout is None:
            layouts = [worker.layout for worker in workers]
            layout = common_layout(layouts) if caller is None else caller.layout
        self._make_here: Callable[[], PlanEnv]
        if caller is None:
            self._make_here, stepper, name = workers[0].construct_here, None, workers[0].name
        else:
            self._make_here, stepper, name = caller.clone, caller.row_stepper, caller.name
        super().__init__(self._make_here, name=name, audit=audit, delay_setup=True)
        self.blocking = blocking
        self._state: Row | None = None
        if caller is not None:
            self._auditor = caller._auditor
        else:
            self._auditor = self._audit_of(workers[0], layout)
        self._processes = ProcessExecutor(
            workers, layout, stepper, step_timeout=step_timeout, start_timeout=limit
        )
        self._use(layout, self._processes)
        self._caller = caller
        self._arguments = {
            "blocking": blocking,
            "step_timeout": step_timeout,
            "audit": audit,
            "start_timeout": start_timeout,
        }

    def _audit_of(self, worker: ExternalProcess, layout: Layout) -> Auditor:
        """Return the auditor for batches that only workers step; `worker` compares states."""

        def state_difference(one: Row, other: Row) -> Any:
            return worker.apply(_state_difference, one, other)()

        def warn(note: str) -> None:
            warnings.warn(note, RuntimeWarning, stacklevel=5)

        return Auditor(
            layout,
            self.name,
            state_difference,
            warn,
            mode=self._audit,
            every=self._audit_every,
            stats=Stats(),
        )

    def setup(self) -> None:
        """Do nothing, because the workers exist already; raise `ClosedError` after `close`."""
        if self._closed:
            raise closed(self.name)

    @property
    def row_stepper(self) -> RowStepper:
        """The object that steps rows in this process; made when it is first needed."""
        self.setup()
        if self._stepper is None:
            self._stepper = self._make_here().row_stepper
            if self._state is not None:
                self._given.hold(self._stepper.current, self._state)
        return self._stepper

    @property
    def n_workers(self) -> int:
        """The number of processes that step rows, including this one if it steps any."""
        return self._processes.n_workers

    def _stepper_of_attributes(self) -> RowStepper:
        return self.row_stepper

    @property
    def isolate(self) -> bool:
        """Whether batches are stepped in other processes only."""
        return self._processes.isolated

    def clone(self, **changed: Any) -> Self:
        """Return another env in the same state, with new workers; `changed` replaces arguments."""
        other = type(self)(
            [self._processes[index].make_another() for index in range(len(self))],
            caller=None if self._caller is None else self._caller.clone(),
            **{**self._arguments, **changed},
        )
        other._set(self.get_state(), given=True)
        return other

    def __len__(self) -> int:
        return len(self._processes)

    def __getitem__(self, index: int) -> ExternalProcess:
        return self._processes[index]

    def get_state(self) -> Row:
        """Return the state that batches start from if no states are given.

        With `caller`, or once the simulator of this process has been used, this is that simulator's
        state. Otherwise it is the first worker's, until the first `reset`, `step` or `set_state`.
        """
        if self._stepper is not None:
            return super().get_state()
        self.setup()
        if self._state is None:
            self._state = self._processes.answer(0, self[0].call("get_state"))
        return self._state.copy()

    def _set(self, state: Row, *, given: bool) -> None:
        if self._stepper is not None:
            super()._set(state, given=given)
        else:
            self._state = self.layout.format.check_row(state).copy()

    def reset(  # type: ignore[override]
        self, indices: Sequence[int] | None = None, return_states: bool = True
    ) -> Any:
        """Reset the workers' environments; return ``(states, obs, infos)``.

        `indices` selects the K processes whose environments are reset; by default, all of them.
        ``states`` is ``(K, state_nbytes)``, ``obs`` a batch of K observations, and ``infos`` a
        list of K dicts. The first of the states becomes the current state. With
        ``return_states=False``, return ``(obs, infos)``.
        """
        self.setup()
        with self._processes.lock:
            numbers = list(range(len(self)) if indices is None else indices)
            futures = [self[index].call("reset", return_state=True) for index in numbers]
            pairs = zip(numbers, futures, strict=True)
            results = [self._processes.answer(index, future) for index, future in pairs]
        obs = spaces.empty(self.observation_space, (len(results),))
        states = self.layout.format.new(len(results))
        for index, result in enumerate(results):
            spaces.put(self.observation_space, obs, index, result.obs)
            states[index] = result.state
        infos = [result.info for result in results]
        if results:
            self._set(states[0], given=True)
        return (states, obs, infos) if return_states else (obs, infos)


def _state_difference(env: PlanEnv, one: Row, other: Row) -> tuple[str, str] | None:
    """Return `Simulator.state_difference` of two payloads; runs in a worker."""
    return env.simulator.state_difference(one, other)
