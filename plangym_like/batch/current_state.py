"""`CurrentState`: the current state of an environment, and single steps from it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from plangym_like.batch.ownership import owned, owned_info
from plangym_like.batch.simulator import EnvStep, Simulator
from plangym_like.errors import InputError, StateLostError
from plangym_like.results import Step, Transition
from plangym_like.states.rows import HEADER_NBYTES, Row, StateFormat


class CurrentState:
    """The current state of an environment, kept in its simulator or set aside as a row.

    Parameters
    ----------
    simulator : Simulator
    state_format : StateFormat
        The format of the environment's state rows.

    Attributes
    ----------
    row : array ``(state_nbytes,) uint8`` or None
        The current state if it is set aside; ``None`` while it is in the simulator.
    started : bool
        Whether there is a current state: the environment was reset, or a state was set.
    kept_image : object or None
        The result of `Simulator.keep_image` at the time when the state was set aside.
    lost : bool
        Whether the current state is lost, because a call that should have replaced it raised an
        error.
    given : bool
        Whether the episode began with a state given by a caller, rather than with a reset.
    in_use : threading.Lock
        Held while the simulator is used; see `not_in_use`.
    is_quick : bool
        Whether the simulator has a fast path for single rows; see `Simulator.step_row`.
    """

    __slots__ = (
        "_format",
        "_simulator",
        "given",
        "in_use",
        "is_quick",
        "kept_image",
        "lost",
        "row",
        "started",
    )

    def __init__(self, simulator: Simulator, state_format: StateFormat) -> None:
        self._simulator = simulator
        self._format = state_format
        self.in_use = threading.Lock()
        self.row: Row | None = None
        self.started = False
        self.lost = False
        self.given = True
        self.kept_image: Any = None
        self.is_quick = type(simulator).step_row is not Simulator.step_row

    @property
    def follows_given(self) -> bool:
        """Whether the current state was reached from a state that a caller gave."""
        return self.started and self.given and not self.lost

    def check(self, name: str) -> None:
        """Raise `StateLostError` if the current state of the environment `name` is lost."""
        if self.lost:
            raise StateLostError(
                f"the current state of {name!r} is lost, because a call that should have replaced "
                "it raised; reset the environment or set a state"
            )

    # Reading and setting aside

    def read(self) -> Row:
        """Return the simulator's state as a new row."""
        state_format = self._format
        row: Row = np.empty(state_format.state_nbytes, np.uint8)
        row[:HEADER_NBYTES] = state_format.header_bytes
        self._simulator.save(row)
        state_format.seal_row(row)
        return row

    def get(self) -> Row:
        """Return the current state as a new row."""
        if self.row is not None:
            return self.row.copy()
        with not_in_use(self.in_use):
            return self.read()

    def set_aside(self) -> None:
        """Keep the current state as a row, so that the simulator can be used for other states."""
        if self.row is None and self.started and not self.lost:
            row = self.read()
            self.kept_image = self._simulator.keep_image()
            self.row = row

    def bring_back(self) -> None:
        """Restore the current state in the simulator if it was set aside."""
        if self.row is not None:
            with not_in_use(self.in_use):
                self._bring_back()

    def image(self) -> Any:
        """Return a copy of the current state's image."""
        with not_in_use(self.in_use):
            self._bring_back()
            return owned(self._simulator.image())

    def _bring_back(self) -> None:
        self._restore()
        self.row = self.kept_image = None

    def _restore(self) -> None:
        """If the current state is set aside, restore it; keep `row` in case a later call raises."""
        if self.row is not None:
            self._simulator.write(self.row[HEADER_NBYTES:])
            if self.kept_image is not None:
                self._simulator.give_image(self.kept_image)

    # Replacing the current state

    def keep_episode(self) -> None:
        """Set the current state aside if its episode began with a reset.

        Call this before a given state replaces the current state.
        """
        if not self.given:
            self._try_to_set_aside()

    def set(self, row: Row, *, given: bool = True) -> None:
        """Make `row` the current state.

        If the simulator rejects `row`, the previous state stays current, provided that it is set
        aside or that its episode began with a reset. Any other state is lost, because setting it
        aside before every step would slow down a search.
        """
        with not_in_use(self.in_use):
            self.keep_episode()
            try:
                self._simulator.write(row[HEADER_NBYTES:])
            except BaseException:
                self.fail()
                raise
            self._begin(given=given)

    def step_env(self, action: Any) -> EnvStep:
        """Step from the current state as ``env.step`` does; the next state becomes current.

        Returns
        -------
        EnvStep
            Observation and info are copies.
        """
        with not_in_use(self.in_use):
            if self.row is not None:
                self._restore()
            obs, reward, terminated, truncated, info = self._simulator.step_env(action)
            self.row = self.kept_image = None
            return owned(obs), reward, terminated, truncated, owned_info(info)

    def step(
        self,
        action: Any,
        dt: int,
        row: Row | None = None,
        *,
        read: bool,
        image: bool,
        autoreset: bool,
    ) -> Transition | Step:
        """Step from `row`, or from the current state, and make the next state the current one.

        Parameters
        ----------
        action, dt, row
            Checked arguments; the action is a copy, which the environment may change.
        read : bool
            Whether to return the next state.
        image : bool
            Whether to put an image of the next state into the info.
        autoreset : bool
            Whether to start the next episode if this one has ended.

        Raises
        ------
        Exception
            Any error of the environment. If `row` is given, the current state is then kept or lost
            as in `set`.
        """
        with not_in_use(self.in_use):
            sim = self._simulator
            if self.is_quick and row is not None and read and not image:
                result = self._step_quickly(row, action, dt, autoreset=autoreset)
                if result is not None:
                    return result
            if row is None:
                self._restore()
                obs, reward, terminated, truncated, info, frames = sim.step(action, dt)
                self.row = self.kept_image = None
            else:
                self.keep_episode()
                try:
                    sim.write(row[HEADER_NBYTES:])
                    obs, reward, terminated, truncated, info, frames = sim.step(action, dt)
                except BaseException:
                    self.fail()
                    raise
                self._begin(given=True)
            # Copied now, because the next use of the simulator may change these objects.
            obs, info = owned(obs), owned_info(info)
            info["n_step"], info["dt"] = frames, dt
            if image:
                info["rgb"] = owned(sim.image())
            fresh = self.read() if read else None
            if autoreset and (terminated or truncated):
                self.restart()
            if fresh is None:
                return Step(obs, reward, terminated, truncated, info)
            return Transition(fresh, obs, reward, terminated, truncated, info)

    def _step_quickly(
        self, row: Row, action: Any, dt: int, *, autoreset: bool
    ) -> Transition | None:
        """Step from `row` with the simulator's fast path; return ``None`` if there is none."""
        simulator = self._simulator
        self.keep_episode()
        try:
            found = simulator.step_row(row, action, dt)
        except BaseException:
            self.fail()
            raise
        if found is None:
            return None
        fresh, (obs, reward, terminated, truncated, info, frames) = found
        if self._format.checksum:
            self._format.seal_row(fresh)
        info["n_step"], info["dt"] = frames, dt
        self._begin(given=True)
        if not simulator.step_row_moves:
            self.row = fresh.copy()
        if autoreset and (terminated or truncated):
            self._bring_back()
            self.restart()
        return Transition(fresh, obs, reward, terminated, truncated, info)

    def reset(
        self, seed: int | None, options: dict[str, Any] | None, *, read: bool, image: bool
    ) -> tuple[Row | None, Any, dict[str, Any]]:
        """Start an episode; return its first state (``None`` unless `read`), observation and info.

        The random generator and the wrappers continue from the current state. If there is no
        current state, they start as in a new simulator. If the current state cannot be restored, a
        new random generator is used. If the reset raises, the current state is unchanged.
        """
        if options is not None and not isinstance(options, Mapping):
            raise InputError(f"options must be a dict or None, got {options!r}")
        with not_in_use(self.in_use):
            self._prepare_reset()
            simulator = self._simulator
            try:
                obs, info = simulator.reset(seed, owned(options))
                obs, info = owned(obs), owned_info(info)
                if image:
                    info["rgb"] = owned(simulator.image())
                row = self.read() if read else None
            except BaseException:
                self.fail()
                raise
            self._begin(given=False)
            return row, obs, info

    def restart(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; the current state must be in the simulator.

        If the reset raises, the current state is lost. Observation and info are not copied.
        """
        try:
            result = self._simulator.reset(seed, options)
        except BaseException:
            self.fail()
            raise
        self._begin(given=False)
        return result

    def fail(self) -> None:
        """Mark the current state as lost, unless it is set aside; called after an error."""
        self.lost = self.started and self.row is None

    def _begin(self, *, given: bool) -> None:
        self.row = self.kept_image = None
        self.started, self.lost, self.given = True, False, given

    def _prepare_reset(self) -> None:
        if self.started and not self.lost:
            if self.row is None:
                self._try_to_set_aside()
                return
            # A state that cannot be restored must not prevent a reset.
            with contextlib.suppress(Exception):
                self._restore()
                return
        self._simulator.renew()

    def _try_to_set_aside(self) -> None:
        # A state that no longer fits its row cannot be kept, but a reset may replace it.
        with contextlib.suppress(Exception):
            self.set_aside()


def not_in_use(mark: threading.Lock) -> threading.Lock:
    """Return the lock `mark`, which the caller holds while it uses the object.

    Call this only while holding the object's re-entrant lock, so that no other thread has `mark`.

    Raises
    ------
    RuntimeError
        The object is in use.
    """
    if mark.locked():
        raise RuntimeError(
            "an environment was used while it was already in use: a signal handler, or code that "
            "one of its methods was running, called it again; set a flag in the handler instead, "
            "or use a clone of the environment there. If this process was forked while another "
            "thread used the environment, use a clone too"
        )
    return mark
