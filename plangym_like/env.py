"""`PlanEnv`: an environment whose whole state can be read, set, and stepped from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from os import PathLike
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from plangym_like.audit.auditor import EVERY, MODES, AuditedRows, Auditor
from plangym_like.batch.arrays import Executor, Inputs, SubmitOptions, single_steps
from plangym_like.batch.layout import check_one_dt
from plangym_like.batch.row_stepper import ExecutorOptions, RowStepper
from plangym_like.batch.simulator import Simulator
from plangym_like.env_parts import EnvParts
from plangym_like.errors import InputError
from plangym_like.gym_view import GymView
from plangym_like.results import (
    BatchStep,
    BatchTransition,
    ResetObservation,
    ResetResult,
    Rollout,
    Step,
    Transition,
)
from plangym_like.states import state_files
from plangym_like.states.rows import HEADER_NBYTES, Row, States
from plangym_like.support.arguments import as_count, check_choice


class PlanEnv(EnvParts):
    """One environment: a simulator, and an executor that steps batches of its states.

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

    def __init__(
        self,
        simulator: Simulator | Callable[[], Simulator | PlanEnv],
        executor: ExecutorOptions | None = None,
        *,
        name: Any = None,
        autoreset: bool = True,
        return_image: bool = False,
        audit: str = "raise",
        audit_every: int = EVERY,
        out_of_bounds: str = "pass",
        delay_setup: bool = False,
    ) -> None:
        check_choice("audit", audit, MODES)
        self._audit, self._audit_every = audit, as_count("audit_every", audit_every)
        super().__init__(
            simulator,
            executor,
            name=name,
            autoreset=autoreset,
            return_image=return_image,
            out_of_bounds=out_of_bounds,
            delay_setup=delay_setup,
        )

    @cached_property
    def _auditor(self) -> Auditor:
        stepper, executor = self.row_stepper, self.executor
        again = executor if executor.isolated else stepper
        parts = stepper.simulator, stepper.layout, self.name, again
        return Auditor(*parts, mode=self._audit, every=self._audit_every)

    # One state

    @overload
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> ResetResult: ...
    @overload
    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        return_state: bool = True,
    ) -> Any: ...
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
            state, obs, info = stepper.current.reset(seed, options, **how)
        if state is None:
            return ResetObservation(obs, info)
        self.last_result = result = ResetResult(state, obs, info)
        return result

    def set_state(self, state: Row) -> None:
        """Make `state` the current state.

        Raises
        ------
        StateError
            The row is malformed or of another environment; the current state does not change.
        """
        stepper = self.row_stepper
        row = self._layout.format.check_row(state)
        with stepper.lock:
            stepper.current.set(row)

    @overload
    def step(self, action: Any, state: None = None, dt: int = 1) -> Step: ...
    @overload
    def step(self, action: Any, state: Row, dt: int = 1) -> Transition: ...
    @overload
    def step(
        self, action: Any, state: Row | None = None, dt: int = 1, return_state: bool | None = None
    ) -> Any: ...
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
            Any error of the environment. If `state` was given, the current state is then lost, and
            later calls that need it raise `StateLostError`. Otherwise, the environment stays as its
            own ``step`` left it, but a current state that is kept as a row does not change.
        """
        stepper = self._stepper
        if stepper is None or stepper.closed:
            stepper = self.row_stepper
        if return_state is None:
            return_state = state is not None
        with stepper.lock:
            return self._step(stepper, action, state, dt, return_state)

    def _step(
        self, stepper: RowStepper, action: Any, state: Row | None, dt: int, return_state: bool
    ) -> Transition | Step:
        # A separate method, for the reason given in `RowStepper._run_range`.
        layout = self._layout
        chosen, steps = layout.check_action(action), check_one_dt(dt)
        row = None if state is None else layout.format.check_row(state)
        if row is None:
            self._start(stepper)
        auditor, sample = self._auditor, None
        if row is not None and not auditor.off and auditor.is_due(1):
            inputs = layout.check([chosen], row, steps, None)
            sample = AuditedRows(auditor, inputs, SubmitOptions())
        result = stepper.current.step(
            chosen,
            steps,
            row,
            read=return_state,
            image=self.return_image,
            autoreset=self.autoreset,
        )
        if sample is not None:
            sample.audit_step()
        if isinstance(result, Transition):
            self.last_result = result
        return result

    def as_gym(self) -> GymView:
        """Return this env as a `gymnasium.Env`, for Gymnasium's wrappers and other libraries.

        The two share the current state: a step of either one changes it for both.
        """
        return GymView(self)

    # Batches

    @overload
    def step_batch(
        self, actions: Any, states: None = None, dt: Any = 1, *, seeds: Any = None
    ) -> BatchStep: ...
    @overload
    def step_batch(
        self, actions: Any, states: States, dt: Any = 1, *, seeds: Any = None
    ) -> BatchTransition: ...
    @overload
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
    ) -> Any: ...
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
    ) -> Any:
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
            An argument is invalid; no row has been stepped. With workers, other rows may have been
            stepped before a damaged state is found; this has no effect.
        """
        executor = self._executor
        if executor is None:
            executor = self.executor
        wanted = return_state if return_state is not None else states is not None
        given = self.get_state() if states is None else states
        inputs = self._layout.check(actions, given, dt, seeds)
        return self._submit(executor, inputs, SubmitOptions(wanted, True, blocking), on_error)

    @overload
    def rollout_batch(
        self,
        actions: Any,
        states: States | None = None,
        dt: Any = 1,
        *,
        seeds: Any = None,
        return_observations: bool = False,
        legal: bool = False,
    ) -> Rollout: ...
    @overload
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
        legal: bool = False,
    ) -> Any: ...
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
        legal: bool = False,
    ) -> Any:
        """Step N rows T times in one call, and return a `Rollout`.

        Parameters
        ----------
        actions : array ``(N, T, *action_shape)``
        states, dt, seeds, blocking, on_error
            As in `step_batch`.
        return_observations : bool
            Whether to return the observations ``(N, T, *obs_shape)``.
        legal : bool
            Whether to replace each action that is not legal by a legal one, which is drawn with the
            row's actions as the seed. The infos then have ``actions`` ``(N, T)``, those that were
            taken, and ``rewards`` ``(N, T, P)`` of all players. It is for games of OpenSpiel and
            PettingZoo, and environments with ``turns_of_states``, without wrappers; others raise
            `InputError`.
        """
        executor = self.executor
        given = self.get_state() if states is None else states
        if legal and not self._layout.plays_out:
            raise InputError(
                "legal=True is for games of OpenSpiel and PettingZoo, and environments with "
                "turns_of_states, without wrappers; "
                f"{self.name} does not tell which actions are legal before a step"
            )
        inputs = self._layout.check(actions, given, dt, seeds, horizon=True, legal=legal)
        options = SubmitOptions(True, return_observations, blocking)
        return self._submit(executor, inputs, options, on_error)

    def _submit(
        self, executor: Executor, inputs: Inputs, options: SubmitOptions, on_error: str
    ) -> Any:
        if on_error != "raise":
            check_choice("on_error", on_error, ("raise", "mask"))
            options = options._replace(masked=True)
        auditor, stats = self._auditor, self._stats
        if stats is not None:  # otherwise another thread has closed the environment
            stats.batches += 1
            stats.rows += inputs.count
        is_due = not auditor.off and inputs.count and auditor.is_due(single_steps(inputs))
        if not is_due:
            return executor.submit(inputs, options)
        sample = AuditedRows(auditor, inputs, options)
        return sample.audited(executor.submit(inputs, options))

    # States

    def get_state(self) -> Row:
        """Return the current state as a new row ``(state_nbytes,) uint8``."""
        stepper = self.row_stepper
        with stepper.lock:
            self._start(stepper)
            return stepper.current.get()

    def view_state(self, states: States) -> dict[str, NDArray[Any]]:
        """Return the named fields of a state row as read-only arrays; ``(N, ...)`` for N rows."""
        stepper = self.row_stepper
        rows = self._layout.format.check(states)
        return stepper.view(rows, single=np.ndim(states) == 1)

    def make_state(self, state: Row | None = None, **physics: Any) -> Row:
        """Return a new row made from physical quantities; the current state does not change.

        Parameters
        ----------
        state : row, optional
            The state to copy and change; by default the current one. All other data are kept.
        physics
            The quantities that the family supports, such as ``x=`` in classic control.
        """
        stepper, state_format = self.row_stepper, self._layout.format
        with stepper.lock:
            row = self.get_state() if state is None else state_format.check_row(state).copy()
            stepper.simulator.build_state(row[HEADER_NBYTES:], **physics)
            state_format.seal_row(row)
            return row

    def save_states(self, path: str | PathLike[str], states: States) -> None:
        """Write state rows to a file, with a digest."""
        state_format = self.layout.format
        state_files.save(path, state_format, state_format.check(states))

    def load_states(self, path: str | PathLike[str]) -> Row:
        """Read the rows ``(N, state_nbytes)`` of a file that `save_states` wrote.

        Raises
        ------
        StateError
            The file is damaged, truncated, or belongs to another environment.
        """
        return state_files.load(path, self.layout.format)

    def get_image(self) -> NDArray[np.uint8]:
        """Return an image ``(height, width, 3) uint8`` of the current state, in any render mode.

        On Atari without ``render_mode="rgb_array"``, it is the frame after the current one if the
        state was set, or if a batch was stepped since.
        """
        stepper = self.row_stepper
        with stepper.lock:
            self._start(stepper)
            image: NDArray[np.uint8] = stepper.current.image()
            return image

    @property
    def img_shape(self) -> tuple[int, ...]:
        """The shape of the images that `get_image` returns."""
        return self.get_image().shape

    def sample_action(self) -> Any:
        """Return a random action."""
        return self.action_space.sample()

    def _start(self, stepper: RowStepper) -> None:
        """Start an episode if there is no current state; raise `StateLostError` if it was lost."""
        current = stepper.current
        if not current.started or current.lost:
            current.check(self.name)
            current.reset(None, None, read=False, image=False)

    # Copies

    def clone(self, **changed: Any) -> Self:
        """Return another env made with the same arguments, updated with `changed`.

        It is in the same state, unless the state formats differ or one of the two is not set up.
        """
        args, kwargs = self.made_with(**changed)
        if any(isinstance(each, Simulator) for each in (*args, kwargs.get("simulator"))):
            raise InputError("a clone would share the simulator: make the env from a callable")
        other = type(self)(*args, **kwargs)
        if self._stepper is not None and not changed.get("delay_setup"):
            other.setup()
        mine, theirs = self._stepper, other._stepper
        if mine is None or theirs is None or mine.layout.format != theirs.layout.format:
            return other
        try:
            if mine.current.started:
                other.set_state(self.get_state())
        except BaseException:
            other.close()
            raise
        return other
