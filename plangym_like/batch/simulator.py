"""`Simulator`: the interface that a family of simulators implements.

It has five parts, in this order: the layout of the state, reading it, writing it, stepping rows,
and images. The rest of the package does everything else (headers, checks, batches, processes).
"""

from __future__ import annotations

import abc
import contextlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Inputs, Leaf, Outcome, Rows, dt_of, put_outcome
from plangym_like.batch.layout import GameFacts
from plangym_like.batch.ownership import owned, owned_info
from plangym_like.errors import EnvApiError, InputError, RewardError, SnapshotError
from plangym_like.states.rows import HEADER_NBYTES, Row

# What ``env.step`` returns.
EnvStep = tuple[Any, Any, bool, bool, dict[str, Any]]
# The length of a payload, in the header of its row.
_USED = struct.Struct("=Q")
_FLAGS = (bool, np.bool_)
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)


def as_reward(reward: Any) -> float:
    """Return `reward`, which an environment's ``step`` returned, as a float.

    Raises
    ------
    RewardError
        The reward is not one number, or float64 cannot hold it.
    """
    try:
        if isinstance(reward, _NUMBERS):
            return float(reward)
        numbers = np.asarray(reward)
        if numbers.size == 1 and numbers.dtype.kind in "biufO":
            return float(numbers.item())
    except OverflowError as error:
        kind = type(reward).__name__
        raise RewardError(
            f"step returned a reward of class {kind} that is too large for float64"
        ) from error
    except (TypeError, ValueError):
        pass
    hint = "; combine the rewards of several agents" * isinstance(reward, Mapping)
    raise RewardError(f"step returned the reward {reward!r}, which is not one number{hint}")


def as_flag(name: str, flag: Any) -> bool:
    """Return `flag`, which an environment's ``step`` returned as `name`, as a bool.

    ``None`` is False, and numbers other than 0 are true, as when NumPy puts them into an array of
    bool.

    Raises
    ------
    EnvApiError
        The flag is not one bool.

    Examples
    --------
    >>> as_flag("truncated", None), as_flag("truncated", np.array([True]))
    (False, True)
    """
    if isinstance(flag, _FLAGS) or flag is None:
        return bool(flag)
    with contextlib.suppress(TypeError, ValueError):
        one = np.asarray(flag)
        if one.size == 1 and one.dtype.kind in "biuf":
            return bool(one.item())
    raise EnvApiError(f"step returned {_shown(flag)} as {name}, which must be True or False")


def as_step(result: Any) -> EnvStep:
    """Check `result`, which an environment's ``step`` returned, and return it.

    Raises
    ------
    EnvApiError
        `result` is not a tuple or list of five parts.
    """
    if isinstance(result, (tuple, list)) and len(result) == 5:
        return result  # type: ignore[return-value]
    old = isinstance(result, tuple) and len(result) == 4
    raise EnvApiError(
        f"step returned {_shown(result)}, not (obs, reward, terminated, truncated, info)"
        + ", but (obs, reward, done, info), as in Gym before 0.26" * old
    )


def as_reset(result: Any) -> tuple[Any, Any]:
    """Check `result`, which an environment's ``reset`` returned, and return it.

    Raises
    ------
    EnvApiError
        `result` is not a tuple or list of two parts.
    """
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return result  # type: ignore[return-value]
    raise EnvApiError(f"reset returned {_shown(result)}, not (obs, info)")


def _shown(result: Any) -> str:
    parts = f" of {len(result)} parts" if isinstance(result, (tuple, list)) else ""
    return f"a {type(result).__name__}{parts}"


def no_simulator(made: Any) -> InputError:
    """Return the error for a user's function that returned `made`, not an env or a simulator."""
    return InputError(
        f"a family, or a factory of simulators, returned {_shown(made)}, not a PlanEnv or a "
        "Simulator: return plangym_like.AnyEnv(..., **kwargs), or another environment class of "
        "this package"
    )


class EnvSource:
    """A callable that returns Gymnasium environments of one family.

    Attributes
    ----------
    family : str
        ``"module:class"`` in `plangym_like.envs`, the family's class.
    """

    family: ClassVar[str]


class Simulator(abc.ABC):
    """One simulator whose whole state can be read, written and stepped from.

    Attributes
    ----------
    family : str
        Four ASCII letters that identify the family in the header of state rows.
    checksum : bool
        Whether rows have a checksum, which is needed if damaged bytes can crash the simulator.
    variable : bool
        Whether payloads vary in length; `read` then returns the number of bytes used.
    payload_nbytes : int
        Bytes of payload in each row, fixed when the simulator is made.
    columns : dict of str to (shape, dtype)
        Info keys that every step returns, in the same order as in the info.
    plain_infos : bool
        Whether infos may hold other keys than those in `columns`.
    exactness : str
        ``"exact"`` (bit-identical to an uninterrupted episode) or ``"approximate"``;
        `exactness_note` is the reason.
    snapshot : str
        How states are saved: ``"native"`` (by the family's own method), ``"pickle"`` or
        ``"replay"``; `snapshot_note` is the reason.
    frameskip : int or tuple
        The number of frames per action.
    fewest_rows : int
        The smallest number of rows for which stepping all rows at once is faster than using one
        environment per row; used only if `steps_batches` is true.
    step_row_moves : bool
        Whether `step_row` leaves the simulator in the next state. If false, the simulator may be in
        any state afterwards, and the next state is restored when it is needed.

    Examples
    --------
    >>> import plangym_like
    >>> simulator = plangym_like.make("CartPole-v1").simulator
    >>> obs, info = simulator.reset(seed=0)
    >>> payload = np.zeros(simulator.payload_nbytes, np.uint8)
    >>> used = simulator.read(payload)
    >>> first = simulator.step(1, dt=1)
    >>> simulator.write(payload)
    >>> bool((simulator.step(1, dt=1)[0] == first[0]).all())
    True
    """

    family: ClassVar[str]
    checksum: bool = False
    variable: bool = False
    payload_nbytes: int
    columns: dict[str, Leaf]
    plain_infos: bool = True
    exactness: str = "exact"
    exactness_note: str = ""
    snapshot: str = "native"
    snapshot_note: str = ""
    frameskip: int | tuple[int, int] = 1
    fewest_rows: ClassVar[int] = 8
    step_row_moves: ClassVar[bool] = False

    env: gymnasium.Env[Any, Any]
    observation_space: Space[Any]
    action_space: Space[Any]

    # Layout of the state

    @abc.abstractmethod
    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return everything that determines a payload's meaning, as JSON-serialisable values."""

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the named fields of `payloads` ``(N, payload_nbytes)``, each ``(N, ...)``."""
        raise SnapshotError(f"the states of {type(self).__name__} have no named fields")

    def build_state(self, payload: Row, **physics: Any) -> None:
        """Write physical quantities into `payload`, a copy of an existing state's payload."""
        raise SnapshotError(f"{type(self).__name__} cannot build a state from physical quantities")

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return a field that differs between two payloads, and both values.

        Return ``None`` if the payloads hold the same state. Families in which different bytes may
        mean the same state override this.
        """
        if np.array_equal(one, other):
            return None
        place = int(np.argmax(one != other))
        return f"byte {place}", f"{one[place]} and {other[place]}"

    # Reading

    @abc.abstractmethod
    def read(self, payload: Row) -> int | None:
        """Write the current state into `payload`; return the number of bytes if it varies."""

    # Writing

    @abc.abstractmethod
    def write(self, payload: Row) -> None:
        """Make the state in `payload` the current one; may be called on a new simulator."""

    @abc.abstractmethod
    def reseed(self, seed: int) -> None:
        """Replace every random generator that affects later steps with one made from `seed`."""

    def renew(self) -> None:
        """Undo changes made by batches and by tests of exactness.

        Called before a reset if there is no current state. The next episode gets a new generator,
        and wrappers get the state that they had originally.
        """

    def clear_caches(self) -> None:
        """Clear restore caches; for benchmarks."""

    # Stepping

    @property
    def steps_env_alone(self) -> bool:
        """Whether a step is one call of ``env.step``, which `GymView` and lanes may call instead.

        They then return what the environment returns, unchanged.
        """
        return False

    @property
    def steps_batches(self) -> bool:
        """Whether stepping many rows at once is possible and faster than stepping each alone."""
        return False

    def takes_threads(self, inputs: Inputs) -> bool:
        """Return whether `step_rows` can step the rows of `inputs` on several threads.

        It then uses ``inputs.threads``. The results do not depend on their number.
        """
        return False

    @property
    def plays_out(self) -> bool:
        """Whether rollouts can replace actions that are not legal by random legal ones.

        It does if ``rows.inputs.legal``, and writes the actions that were taken, and the rewards of
        all players, to the columns ``actions`` ``(N, T)`` and ``rewards`` ``(N, T, P)``.
        """
        return False

    @property
    def game(self) -> GameFacts | None:
        """What is known of the rules, if this is a game of a library."""
        return None

    @abc.abstractmethod
    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode and return its first observation and info.

        Both may be the simulator's own objects; the caller copies them.
        """

    @abc.abstractmethod
    def step(self, action: Any, dt: int) -> Outcome:
        """Hold `action` for ``dt * frameskip`` frames, or until the episode ends.

        Returns observation, summed reward, terminated, truncated, info, and the number of frames.
        Observation and info may be the simulator's own objects; `action` is a copy that may be
        changed.
        """

    def step_row(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step from `row` faster than by calling `write`, `step` and `read`.

        This is optional: without it, a single step of CartPole from a given state takes four times
        as long, and one of a board game 1.5 times.

        Return the next state as a new row without its checksum, and the outcome, which the caller
        may change. Return ``None`` if there is no fast path. See `step_row_moves`. An `InputError`
        is raised only before anything has changed.
        """
        return None

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step the rows ``start:stop`` of a batch, each from its own state.

        In a rollout (``rows.inputs.horizon``), a row is stepped through its T actions, or until its
        episode ends. Families that can step many rows at once override this. An override must also
        copy the header of each row's state to its next state.
        """
        step = self._roll_out if rows.inputs.horizon else self._step_once
        for index in range(start, stop):
            self._load(rows, index)
            step(rows, index)
            if rows.next_states is not None:
                self.save(rows.next_states[index])

    def _load(self, rows: Rows, index: int) -> None:
        """Write the state that row `index` starts from, and copy the header to its next state."""
        inputs = rows.inputs
        rows.cursor[0] = index
        given = inputs.states[0 if len(inputs.states) == 1 else index]
        if rows.next_states is not None:
            rows.next_states[index, :HEADER_NBYTES] = given[:HEADER_NBYTES]
        self.write(given[HEADER_NBYTES:])
        if inputs.seeds is not None:
            self.reseed(int(inputs.seeds[index]))

    def _step_once(self, rows: Rows, index: int) -> None:
        """Step row `index`, whose state is loaded, and write the outcome."""
        inputs = rows.inputs
        outcome = self.step(owned(inputs.actions[index]), dt_of(inputs, index))
        if "rgb" in rows.columns:
            info = {**owned_info(outcome[4]), "rgb": self.image()}
            outcome = (*outcome[:4], info, outcome[5])
        put_outcome(rows, index, self.observation_space, outcome)

    def _roll_out(self, rows: Rows, index: int) -> None:
        """Step row `index`, whose state is loaded, through its actions; write the outcomes."""
        inputs = rows.inputs
        actions, dt = inputs.actions[index], dt_of(inputs, index)
        ended, frames = False, 0
        obs: Any = None
        info: dict[str, Any] = {}
        terminated = truncated = False
        for time in range(inputs.horizon):
            reward = 0.0
            if not ended:
                outcome = self.step(owned(actions[time]), dt)
                obs, reward, terminated, truncated, info, n_step = outcome
                frames += n_step
                ended = terminated or truncated
            rows.rewards[index, time] = reward
            rows.terminateds[index, time] = terminated
            rows.truncateds[index, time] = truncated
            if rows.observations is not None:
                spaces.put(self.observation_space, rows.observations, (index, time), obs)
        rows.n_step[index] = frames
        if rows.infos is not None and info:
            rows.infos[index] = owned_info(info, self.columns)

    def save(self, row: Row) -> None:
        """Write the current state into `row` ``(state_nbytes,)``, which already has a header."""
        used = self.read(row[HEADER_NBYTES:])
        if used is not None:
            _USED.pack_into(row.data, 16, used)
            row[HEADER_NBYTES + used :] = 0

    # Images

    @abc.abstractmethod
    def image(self) -> NDArray[np.uint8]:
        """Return an image of the current state, ``(height, width, 3) uint8``."""

    def suspect_wrappers(self) -> Sequence[str]:
        """Return the names of the wrappers that may have state outside the saved rows."""
        return ()

    def copy_for_audits(self) -> Simulator | None:
        """Return a copy in which audits step rows, or ``None`` if audits use this simulator."""
        return None

    def close(self) -> None:
        """Release the simulator's resources; safe to call more than once."""
        self.env.close()
