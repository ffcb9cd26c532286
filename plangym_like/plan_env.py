"""`PlanEnv`: an environment whose whole state can be read, set, and stepped from."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Literal, Unpack, overload

from plangym_like.audit.audited_rows import Again, AuditedRows
from plangym_like.batch_options import (
    LaterByDefault,
    LaterNoStates,
    LaterStates,
    NowByDefault,
    NowNoStates,
    NowStates,
    ResetOptions,
    RollLater,
    RollNow,
    RollSometime,
    Sometime,
)
from plangym_like.batches import Inputs, check_on_error, check_one_dt, single_steps
from plangym_like.counts import as_count
from plangym_like.execution.executor import Executor, SubmitOptions
from plangym_like.execution.job import outside_cause
from plangym_like.execution.process_executor import ProcessExecutor
from plangym_like.execution.serial_executor import SerialExecutor
from plangym_like.future import Future
from plangym_like.gym_view import GymView
from plangym_like.row_stepper import RowStepper
from plangym_like.stateful_env import StatefulEnv
from plangym_like.states import Row, States
from plangym_like.transitions import (
    BatchStep,
    BatchTransition,
    ResetObservation,
    ResetResult,
    Rollout,
    Step,
    Transition,
)

# How audits step rows whose states and observations they need.
_WHOLE = SubmitOptions(masked=True, audit=True)


class PlanEnv(StatefulEnv):
    """One environment: a simulator, and an executor that steps batches of its states.

    While a batch uses the simulator, the current state is kept as a row (see `CurrentState`).

    Parameters
    ----------
    simulator : Simulator, or callable that returns one
        The simulator. A callable may also return a `PlanEnv`, whose simulator and options are used.
    executor : ExecutorOptions, optional
        Where batches are stepped; by default in this process.
    name : str or callable, optional
        The name of the environment.
    return_image : bool
        Put an image of each resulting state into ``info["rgb"]``.
    autoreset, audit, audit_every, out_of_bounds
        As in `make`.
    delay_setup : bool
        Make simulator and executor on first use; until then the env can be pickled.

    Examples
    --------
    >>> import plangym_like
    >>> env = plangym_like.make("CartPole-v1")
    >>> state, obs, info = env.reset(seed=0)
    >>> first = env.step_batch([0, 1], state)  # two actions from one state
    >>> env.step_batch([0, 1], first.states, dt=3).rewards
    array([3., 3.])
    >>> env.step(1).reward  # from the current state
    1.0
    """

    # One state

    @overload
    def reset(
        self, *, return_state: Literal[True] = True, **options: Unpack[ResetOptions]
    ) -> ResetResult: ...
    @overload
    def reset(
        self, *, return_state: Literal[False], **options: Unpack[ResetOptions]
    ) -> ResetObservation: ...
    @overload
    def reset(
        self, *, return_state: bool, **options: Unpack[ResetOptions]
    ) -> ResetResult | ResetObservation: ...
    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> ResetResult | ResetObservation:
        """Start an episode.

        Without a seed, the current state's random generator continues, as in Gymnasium; the first
        reset makes a new generator. Batches do not change the generator. If the reset raises, the
        current state does not change.

        Returns
        -------
        ResetResult
            ``(state, obs, info)``, or ``(obs, info)`` with ``return_state=False``.

        Raises
        ------
        InputError
            The seed is negative or not a whole number, or `options` is not a dict.
        SnapshotError
            `options` change something that a state row cannot hold.
        """
        stepper = self.row_stepper
        if seed is not None:
            seed = as_count("seed", seed, least=0)
        how: dict[str, Any] = {"read": return_state, "image": self.return_image}
        with stepper.lock:
            state, obs, info = self._given.use(stepper.current, "reset", seed, options, **how)
        return ResetObservation(obs, info) if state is None else ResetResult(state, obs, info)

    def set_state(self, state: Row) -> None:
        """Make `state` the current state.

        Raises
        ------
        StateError
            The row is malformed or of another environment; the current state does not change.
        PoisonInputError, StepTimeoutError
            Batches are isolated, and the workers that tried the row died or hung.
        """
        self._set(state, given=True)

    @overload
    def step(
        self,
        action: Any,
        state: None = None,
        dt: int = 1,
        return_state: Literal[False] | None = None,
    ) -> Step: ...
    @overload
    def step(
        self, action: Any, state: Row, dt: int = 1, return_state: Literal[True] | None = None
    ) -> Transition: ...
    @overload
    def step(
        self, action: Any, state: Row | None = None, dt: int = 1, *, return_state: Literal[True]
    ) -> Transition: ...
    @overload
    def step(
        self, action: Any, state: Row | None = None, dt: int = 1, *, return_state: Literal[False]
    ) -> Step: ...
    @overload
    def step(
        self, action: Any, state: Row | None = None, dt: int = 1, return_state: bool | None = None
    ) -> Transition | Step: ...
    def step(
        self, action: Any, state: Row | None = None, dt: int = 1, return_state: bool | None = None
    ) -> Transition | Step:
        """Hold `action` for ``dt * frameskip`` frames, or until the episode ends.

        Parameters
        ----------
        action : element of the action space
            Actions of a `Box` keep the dtype that ``numpy.asarray`` gives them. They may lie beyond
            its bounds, depending on `out_of_bounds`.
        state : row, optional
            The state to step from; by default the current one. The next state becomes current.
        dt : int
            The duration in units of `frameskip` frames, at least 1.
        return_state : bool, optional
            Whether to return the next state; by default only if `state` is given.

        Returns
        -------
        Transition
            ``(state, obs, reward, terminated, truncated, info)``; without the state, a `Step`.

        Raises
        ------
        InputError, StateError
            An argument is invalid; the environment has not been stepped.
        Exception
            Any error of the environment. If `state` was given, a current state that was reached
            from `reset` does not change. Any other current state may be lost, and later calls that
            need it raise `StateLostError`. If `state` was not given, the environment stays as its
            own ``step`` left it, but a current state that is kept as a row does not change.
        """
        stepper = self._stepper
        if stepper is None or stepper.refusal is not None:
            stepper = self.row_stepper
        if self._given.tries:
            self._given.attempt_step(stepper.current, action, state, dt)
        if return_state is None:
            return_state = state is not None
        with stepper.lock:
            if state is None:
                self._start(stepper)
            elif self._auditor.is_due(1):
                return self._step_audited(stepper, action, state, dt, return_state)
            return self._step(stepper, action, state, dt, return_state)

    def _step(
        self, stepper: RowStepper, action: Any, state: Row | None, dt: int, return_state: bool
    ) -> Transition | Step:
        layout = self._layout
        chosen, steps = layout.check_action(action), check_one_dt(dt)
        row = None if state is None else layout.format.check_row(state)
        step: Any = stepper.current.step
        if self._given.elsewhere:
            step = partial(self._given.step, stepper.current)
        result: Transition | Step = step(
            chosen, steps, row, read=return_state, image=self.return_image, autoreset=self.autoreset
        )
        return result

    def _step_audited(
        self, stepper: RowStepper, action: Any, state: Row, dt: int, return_state: bool
    ) -> Transition | Step:
        given = copy.deepcopy((action, state))
        inputs = self._layout.check([given[0]], given[1], dt, None)
        sample = AuditedRows(self._auditor, self._layout, inputs)
        result = self._step(stepper, action, state, dt, True)
        # This thread holds the stepper's lock. An executor that steps rows in this process may hold
        # its own lock while it waits for the stepper's, so using it here could deadlock.
        here = partial(self._here, self.executor)
        sample.audited(result, lambda: self._again(here(), here()))
        return result if return_state else Step(*result[1:])

    def as_gym(self) -> GymView:
        """Return this env as a `gymnasium.Env`, for Gymnasium's wrappers and other libraries.

        The two share the current state: a step of either one changes it for both.
        """
        return GymView(self)

    # Batches

    @overload
    def step_batch(
        self, actions: Any, states: None = None, dt: Any = 1, **how: Unpack[NowByDefault]
    ) -> BatchStep: ...
    @overload
    def step_batch(
        self, actions: Any, states: States, dt: Any = 1, **how: Unpack[NowByDefault]
    ) -> BatchTransition: ...
    @overload
    def step_batch(
        self, actions: Any, states: States | None = None, dt: Any = 1, **how: Unpack[NowStates]
    ) -> BatchTransition: ...
    @overload
    def step_batch(
        self, actions: Any, states: States | None = None, dt: Any = 1, **how: Unpack[NowNoStates]
    ) -> BatchStep: ...
    @overload
    def step_batch(
        self, actions: Any, states: None = None, dt: Any = 1, **how: Unpack[LaterByDefault]
    ) -> Future[BatchStep]: ...
    @overload
    def step_batch(
        self, actions: Any, states: States, dt: Any = 1, **how: Unpack[LaterByDefault]
    ) -> Future[BatchTransition]: ...
    @overload
    def step_batch(
        self, actions: Any, states: States | None = None, dt: Any = 1, **how: Unpack[LaterStates]
    ) -> Future[BatchTransition]: ...
    @overload
    def step_batch(
        self, actions: Any, states: States | None = None, dt: Any = 1, **how: Unpack[LaterNoStates]
    ) -> Future[BatchStep]: ...
    @overload
    def step_batch(
        self,
        actions: Any,
        states: States | None = None,
        dt: Any = 1,
        return_state: bool | None = None,
        **how: Unpack[Sometime],
    ) -> BatchTransition | BatchStep | Future[BatchTransition] | Future[BatchStep]: ...
    def step_batch(
        self,
        actions: Any,
        states: States | None = None,
        dt: Any = 1,
        return_state: bool | None = None,
        *,
        seeds: Any = None,
        blocking: bool = True,
        on_error: str = "raise",
    ) -> BatchTransition | BatchStep | Future[BatchTransition] | Future[BatchStep]:
        """Step N states, each with its own action; the env's current state does not change.

        Row i of the result depends only on ``actions[i], states[i], dt[i], seeds[i]``.

        Parameters
        ----------
        actions : array ``(N, *action_shape)``, sequence, or one action for all rows
            Actions of a `Box` keep the dtype that ``numpy.asarray`` gives the batch.
        states : array ``(N, state_nbytes) uint8``, sequence of rows, or one row for all
            The states to step from; by default, every action starts from the current state.
        dt : int or int array ``(N,)``
            How long each action is held, in units of `frameskip` frames.
        return_state : bool, optional
            Whether to return the next states; by default only if `states` are given.
        seeds : int array ``(N,)``, optional
            Seeds for the rows' random generators, which are reseeded before the step.
        blocking : bool
            ``False`` returns a `Future`, whose ``result()`` returns the result or raises the error
            of the batch. Without workers, the rows are stepped before this call returns.
        on_error : {"raise", "mask"}
            ``"raise"``: raise the error of the first row that raises, or that kills or hangs its
            worker. ``"mask"``: step all rows; ``infos.failed`` ``(N,) bool`` tells which rows
            failed, and ``infos.errors`` why. A failed row has a state of zeros, which is not a
            valid state, a reward of NaN, an observation of zeros, and false flags.

        Returns
        -------
        BatchTransition
            ``(states, obs, rewards, terminateds, truncateds, infos)``; without states, a
            `BatchStep`.

        Raises
        ------
        InputError, StateError
            An argument is invalid; no row has been stepped.
        """
        executor = self._executor
        if executor is None:
            executor = self.executor
        wanted = return_state if return_state is not None else states is not None
        given = self.get_state() if states is None else states
        inputs = self._layout.check(actions, given, dt, seeds, sums=False)
        options = SubmitOptions(wanted, True, blocking, check_on_error(on_error))
        return self._submit(executor, inputs, options)  # type: ignore[no-any-return]

    make_transitions = step_batch

    @overload
    def rollout_batch(
        self, actions: Any, states: States | None = None, dt: Any = 1, **how: Unpack[RollNow]
    ) -> Rollout: ...
    @overload
    def rollout_batch(
        self, actions: Any, states: States | None = None, dt: Any = 1, **how: Unpack[RollLater]
    ) -> Future[Rollout]: ...
    @overload
    def rollout_batch(
        self, actions: Any, states: States | None = None, dt: Any = 1, **how: Unpack[RollSometime]
    ) -> Rollout | Future[Rollout]: ...
    def rollout_batch(
        self,
        actions: Any,
        states: States | None = None,
        dt: Any = 1,
        *,
        seeds: Any = None,
        return_observations: bool = False,
        blocking: bool = True,
        on_error: str = "raise",
    ) -> Rollout | Future[Rollout]:
        """Step N rows T times in one call, and return a `Rollout`.

        Parameters
        ----------
        actions : array ``(N, T, *action_shape)``
        states, dt, seeds, blocking, on_error
            As in `step_batch`.
        return_observations : bool
            Whether to return the observations ``(N, T, *obs_shape)``.
        """
        executor = self.executor
        given = self.get_state() if states is None else states
        inputs = self._layout.check(actions, given, dt, seeds, horizon=True, sums=False)
        options = SubmitOptions(True, return_observations, blocking, check_on_error(on_error))
        return self._submit(executor, inputs, options)  # type: ignore[no-any-return]

    def _submit(self, executor: Executor, inputs: Inputs, options: SubmitOptions) -> Any:
        steps = single_steps(inputs, 0, inputs.count)
        waits = not (executor.can_audit or self._auditor.all_rows)
        if waits or not inputs.count or not self._auditor.is_due(steps):
            return executor.submit(inputs, options)
        sample = AuditedRows(self._auditor, self._layout, inputs)
        result = executor.submit(inputs, options)
        return sample.audited(result, lambda: self._again(executor, self._here(executor), options))

    def _here(self, executor: Executor) -> Executor:
        """Return an executor that steps rows in this process, or `executor` if it is isolated."""
        if executor.isolated:
            return executor
        self.row_stepper.for_audits()  # makes a copy the first time
        return SerialExecutor(self.row_stepper)

    def _again(self, executor: Executor, here: Executor, options: SubmitOptions = _WHOLE) -> Again:
        """Return functions that step rows for audits: two with `executor`, and one with `here`.

        `options` are those of the audited batch.
        """
        audit = options._replace(masked=True, audit=True, blocking=True)
        return Again(
            partial(executor.submit, options=audit),
            partial(executor.submit, options=_WHOLE),
            partial(here.submit, options=_WHOLE),
            self._outside_cause,
        )

    def _outside_cause(self, inputs: Inputs) -> str:
        executor = self.executor
        if not executor.isolated:
            return self.row_stepper.outside_cause(inputs)
        if isinstance(executor, ProcessExecutor) and executor.workers:
            return str(executor.call(outside_cause, inputs))
        return ""  # all workers are on other machines
