"""`PlanEnv`: an environment whose whole state can be read, set, and stepped from."""

from __future__ import annotations

import copy
import time
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plangym_like import state_files
from plangym_like.audit.audited_rows import Again
from plangym_like.batch_future import BatchFuture
from plangym_like.batches import Inputs, Rows, check_on_error
from plangym_like.row_errors import raised_by_signal_handler, row_exit
from plangym_like.simulator import Simulator
from plangym_like.standing_env import StandingEnv
from plangym_like.states import HEADER_NBYTES, Row
from plangym_like.transitions import BatchStep, BatchTransition, Rollout, Step, Transition


class PlanEnv(StandingEnv):
    """One environment, in this process.

    Parameters
    ----------
    name : str or callable
        A registered Gymnasium id, or a callable that returns a `gymnasium.Env`.
    frameskip : int, optional
        Frames that one action lasts; ``None`` keeps what the id registers.
    autoreset : bool
        Whether `step` starts a new episode once one has ended (batches never do).
    delay_setup : bool
        Make the simulator on first use; until then the env can be pickled.
    return_image : bool
        Put the picture of each resulting state into ``info["rgb"]``; needs
        ``render_mode="rgb_array"``.
    out_of_bounds : {"pass", "raise", "clip"}
        What happens to finite actions beyond the bounds of a `Box`: the environment gets them as
        they are, `ActionError` is raised, or they are clipped.
    simulator_kwargs
        What the family takes: ``render_mode``, ``obs_type``, ``wrappers``,
        ``remove_time_limit``, and the environment's own arguments.
    """

    # Where single steps are audited; ``None``: here.
    run_elsewhere: Again | None = None

    def step(
        self,
        action: Any,
        state: Row | None = None,
        dt: int = 1,
        return_state: bool | None = None,
    ) -> Transition | Step:
        """Hold `action` for ``dt * frameskip`` frames; see `StandingEnv.step`."""
        if state is None or not self.auditor.is_due(1):
            return super().step(action, state, dt, return_state)
        with self._using():
            result = self._step_audited(action, state, dt)
        return result if return_state in (None, True) else Step(*result[1:])

    def _step_audited(self, action: Any, state: Row, dt: int) -> Transition:
        given, begun = copy.deepcopy((action, state)), time.perf_counter()
        result = super().step(action, state, dt, True)
        assert isinstance(result, Transition)
        seconds = time.perf_counter() - begun
        inputs = self._layout.check([given[0]], given[1], dt, None)
        again = self.run_elsewhere or self.run_again
        self.auditor.choose(inputs).compare_step(result, again, seconds)
        return result

    # Batches

    def step_batch(
        self,
        actions: Any,
        states: Any = None,
        dt: Any = 1,
        return_state: bool | None = None,
        *,
        seeds: Any = None,
        blocking: bool = True,
        on_error: str = "raise",
    ) -> Any:
        """Step N states, each by its own action; the env's current state is untouched.

        Row i of the result depends on ``actions[i], states[i], dt[i], seeds[i]`` alone.

        Parameters
        ----------
        actions : array ``(N, *action_shape)``, sequence, or one action for all rows
            Numbers of a `Box` keep the dtype that ``numpy.asarray`` gives the batch.
        states : array ``(N, state_nbytes) uint8``, sequence of rows, or one row for all
            ``None`` branches every action from the current state.
        dt : int or int array ``(N,)``
            How long each action is held, in units of `frameskip` frames.
        return_state : bool, optional
            ``None`` returns states exactly where they were given.
        seeds : int array ``(N,)``, optional
            Reseed each row's randomness before it steps.
        blocking : bool
            ``False`` returns a `BatchFuture`; its ``result()`` returns the result, or raises what
            stepping the rows raised. Without workers the rows are stepped before this returns.
        on_error : {"raise", "mask"}
            What becomes of a row that raises, or that kills or hangs its worker. ``"raise"``: the
            lowest such row's error is raised. ``"mask"``: ``infos.failed`` ``(N,) bool`` says which
            rows failed, ``infos.errors`` what they raised, and all other rows are there; a failed
            row's state is all zeros, which no environment takes, its reward NaN, its observation
            zeros and its flags false.

        Returns
        -------
        BatchTransition
            ``(states, obs, rewards, terminateds, truncateds, infos)``; without states, a
            `BatchStep`.

        Raises
        ------
        InputError, StateError
            Before anything happens.
        """
        with self._using(start=states is None):
            wanted = return_state if return_state is not None else states is not None
            given = self.get_state() if states is None else states
            inputs = self._layout.check(actions, given, dt, seeds)
            masked = check_on_error(on_error)
            run = partial(self._run_audited, inputs, masked, wanted, True)
            return run() if blocking else BatchFuture.of(run)

    def rollout_batch(
        self,
        actions: Any,
        states: Any = None,
        dt: Any = 1,
        *,
        seeds: Any = None,
        return_observations: bool = False,
        blocking: bool = True,
        on_error: str = "raise",
    ) -> Any:
        """Run T steps of N rows without coming back in between.

        Parameters
        ----------
        actions : array ``(N, T, *action_shape)``
        states, dt, seeds, blocking, on_error
            As in `step_batch`.
        return_observations : bool
            Whether to bring the observations ``(N, T, *obs_shape)`` back.

        Returns
        -------
        Rollout
        """
        with self._using(start=states is None):
            given = self.get_state() if states is None else states
            inputs = self._layout.check(actions, given, dt, seeds, horizon=True)
            masked = check_on_error(on_error)
            run = partial(self._run_audited, inputs, masked, True, return_observations)
            return run() if blocking else BatchFuture.of(run)

    def _run_audited(self, inputs: Inputs, masked: bool, states: bool, observations: bool) -> Any:
        sample = self.auditor.draw(inputs)
        self._stats.begin(inputs.count)
        begun = time.perf_counter()
        result = self._run(inputs, masked, states, observations)
        self._stats.seconds_here += time.perf_counter() - begun
        if sample is not None:
            sample.compare(result, self.run_again)
        return result

    def run_again(self, inputs: Inputs) -> Any:
        """Step rows of an audit; rows that fail are reported in the result."""
        return self._run(inputs, True, True, True)

    def _run(
        self, inputs: Inputs, masked: bool, states: bool, observations: bool
    ) -> BatchTransition | BatchStep | Rollout:
        rows = self._layout.allocate(inputs, states=states, observations=observations)
        rows.clock = self._stats.clock.sample(inputs.count)
        if masked:
            return self._layout.result(rows, self.run_rows_apart(rows, 0, inputs.count))
        self.run_rows(rows, 0, inputs.count)
        return self._layout.result(rows)

    def run_rows_apart(self, rows: Rows, start: int, stop: int) -> dict[int, Exception]:
        """Step rows `start` to `stop`, each whatever the others raise; return what was raised."""
        failure = None
        try:
            self.run_rows(rows, start, stop)
        except Exception as error:
            failure = error
        if failure is None:
            return {}
        if stop - start == 1:
            return {start: failure}
        # A family may step many rows at once, and leave none of them done when one raises.
        middle = (start + stop) // 2
        lower = self.run_rows_apart(rows, start, middle)
        return lower | self.run_rows_apart(rows, middle, stop)

    def run_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step rows `start` to `stop` of a checked batch; what lanes of a batch call."""
        self.setup()
        with self._lock:
            self._park()
            if start < stop:
                self._run_range(rows, start, stop)

    def _run_range(self, rows: Rows, start: int, stop: int) -> None:
        sim, layout = self._sim, self._layout
        assert sim is not None
        fresh = None if rows.next_states is None else rows.next_states[start:stop]
        rows.cursor[0] = start
        if fresh is not None and not sim.copies_headers:
            layout.format.stamp(fresh)
        self._run_in_simulator(sim, rows, start, stop)
        if fresh is not None:
            layout.format.seal(fresh)

    def _run_in_simulator(self, sim: Simulator, rows: Rows, start: int, stop: int) -> None:
        try:
            run = sim.rollout_rows if rows.inputs.horizon else sim.step_rows
            run(rows, start, stop)
        except BaseException as error:
            own = isinstance(error, Exception) or raised_by_signal_handler(error)
            raised = error if own else row_exit(error)
            raised.add_note(f"(in row {int(rows.cursor[0])} of a batch of {rows.inputs.count})")
            if own:
                raise
            raise raised from error

    # States as data

    def view_state(self, states: Row) -> dict[str, NDArray[Any]]:
        """Return the named fields of one row, or of N rows with a leading axis, read-only."""
        with self._using() as sim:
            rows = self._layout.format.check(states)
            fields = sim.fields(rows[:, HEADER_NBYTES:])
        single = np.ndim(states) == 1
        named = {name: (column[0] if single else column) for name, column in fields.items()}
        for name, value in named.items():
            if isinstance(value, np.ndarray):
                # A view could be made writable again, and would change with the rows.
                named[name] = value.copy()
                named[name].flags.writeable = False
        return named

    def make_state(self, state: Row | None = None, **physics: Any) -> Row:
        """Return a new row made of physical quantities; the current state is untouched.

        Parameters
        ----------
        state : row, optional
            Where everything that `physics` does not name comes from; the current state if left out.
        physics
            What the family knows: ``x=`` on classic control.
        """
        with self._using(start=state is None) as sim:
            source = self.get_state() if state is None else self._layout.format.check(state)[0]
            row: Row = np.array(source, copy=True)
            sim.compose(row[HEADER_NBYTES:], **physics)
            self._layout.format.seal(row[None])
            return row

    def save_states(self, path: str | PathLike[str], states: Any) -> None:
        """Write state rows to a file, with a digest."""
        with self._using():
            state_files.save(path, self._layout.format, self._layout.format.check(states))

    def load_states(self, path: str | PathLike[str]) -> Row:
        """Read the rows ``(N, state_nbytes)`` of a file that `save_states` wrote.

        Raises
        ------
        StateError
            The file is damaged, truncated, or of another environment.
        """
        with self._using():
            return state_files.load(path, self._layout.format)
