"""What a family of simulators has to say so that it can be planned over.

A family answers four questions, in this order: what is the state, how is it read, how is it
written, how is a chunk of rows stepped. Everything else (headers, checks, batches, processes) is
done for it.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from plangym_like import spaces
from plangym_like.batches import Leaf, Rows, dt_of
from plangym_like.errors import RewardError, SnapshotError
from plangym_like.ownership import owned, owned_info
from plangym_like.states import HEADER_NBYTES, Row

Outcome = tuple[Any, float, bool, bool, dict[str, Any], int]
# What ``env.step`` returns.
EnvStep = tuple[Any, Any, bool, bool, dict[str, Any]]
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)


def as_reward(reward: Any) -> float:
    """Return `reward`, what an environment's ``step`` returned, as a float.

    Raises
    ------
    RewardError
        It is not one number.
    """
    if isinstance(reward, _NUMBERS):
        return float(reward)
    if reward is None or isinstance(reward, (str, bytes)):
        raise RewardError(f"step returned the reward {reward!r}, which is not a number")
    try:
        numbers = np.asarray(reward)
        if numbers.size == 1:
            return float(numbers.item())
    except (TypeError, ValueError) as error:
        raise RewardError(f"step returned the reward {reward!r}, which is not a number") from error
    raise RewardError(
        f"step returned a reward of shape {numbers.shape}, but rewards are single numbers here; "
        "combine several rewards in a wrapper, wrappers=[(mo_gymnasium.wrappers.LinearReward, "
        "{'weight': ...})] for instance"
    )


class Simulator(abc.ABC):
    """One simulator whose whole state can be read, written and stepped from.

    Attributes
    ----------
    family : str
        Four ASCII letters in the header of its state rows.
    checksum : bool
        Whether rows carry a checksum: for simulators that damaged bytes can crash.
    variable : bool
        Whether payloads vary in length (then `read` returns the bytes it used).
    payload_nbytes : int
        Bytes of payload in each row, fixed when the simulator is made.
    columns : dict of str to (shape, dtype)
        Info keys that every step fills, in the order in which `info` has them.
    plain_infos : bool
        Whether `info` may hold other keys than those.
    exactness : str
        ``"exact"`` (bit-identical to never having stopped) or ``"approximate"``, with
        `exactness_note` saying why.
    snapshot : str
        How states are saved: ``"native"`` (the family's own way), ``"pickle"`` or ``"replay"``,
        with `snapshot_note` saying why.
    frameskip : int or tuple
        How many frames one action lasts.
    shown_attributes : tuple of str
        Which of its attributes the environment shows as its own.
    """

    family: ClassVar[str]
    checksum: ClassVar[bool] = False
    variable: bool = False
    payload_nbytes: int
    columns: dict[str, Leaf]
    plain_infos: bool = True
    exactness: str = "exact"
    exactness_note: str = ""
    snapshot: str = "native"
    snapshot_note: str = ""
    frameskip: int | tuple[int, int] = 1
    shown_attributes: ClassVar[tuple[str, ...]] = ()

    env: gymnasium.Env[Any, Any]
    observation_space: Space[Any]
    action_space: Space[Any]

    # What is the state

    @abc.abstractmethod
    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return everything that the meaning of a payload depends on, as JSON-able values."""

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the named parts of `payloads` ``(N, payload_nbytes)``, each ``(N, ...)``."""
        raise SnapshotError(f"the states of {type(self).__name__} have no named fields")

    def build_state(self, payload: Row, **physics: Any) -> None:
        """Fill `payload`, a copy of the current state's, from what the physics is made of."""
        raise SnapshotError(f"{type(self).__name__} cannot build a state from physical quantities")

    def state_difference(self, one: Row, other: Row) -> tuple[str, str] | None:
        """Return where two payloads differ in what they mean, and the two values.

        Families whose bytes may differ without meaning override this.
        """
        if np.array_equal(one, other):
            return None
        place = int(np.argmax(one != other))
        return f"byte {place}", f"{one[place]} and {other[place]}"

    # How is it read

    @abc.abstractmethod
    def read(self, payload: Row) -> int | None:
        """Write the current state into `payload`; return the bytes used where that varies."""

    # How is it written

    @abc.abstractmethod
    def write(self, payload: Row) -> None:
        """Make the state in `payload` the current one; valid on a new simulator too."""

    @abc.abstractmethod
    def reseed(self, seed: int) -> None:
        """Replace every random generator that the future depends on by one made of `seed`."""

    def renew(self) -> None:
        """Undo what trials and batches have changed; called before the first reset.

        Random generators, and what wrappers remember, become what they were when the simulator was
        made.
        """

    def forget(self) -> None:
        """Clear restore caches; for benchmarks."""

    # How is it stepped

    @property
    def steps_batches(self) -> bool:
        """Whether many rows are stepped at once, faster than one after the other."""
        return False

    @abc.abstractmethod
    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode and return its first observation and info.

        Both may be the simulator's own objects: the caller copies them.
        """

    @abc.abstractmethod
    def step(self, action: Any, dt: int) -> Outcome:
        """Hold `action` for ``dt * frameskip`` frames, or until the episode ends.

        Returns observation, summed reward, terminated, truncated, info, and the frames that ran.
        Observation and info may be the simulator's own objects; `action` is a copy that may change.
        """

    def step_env(self, action: Any) -> EnvStep:
        """Return what the environment's own ``step`` returns for one action, if possible unchanged.

        Observation and info may be the simulator's own objects; `action` is a copy that may change.
        """
        return self.step(action, 1)[:5]

    def step_row(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step from `row` without the simulator, if that is quicker than `write`, `step`, `read`.

        Returns the next state as a new row, and the outcome; ``None`` if there is no quick way.
        """
        return None

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step rows `start` to `stop` of a batch, each from its own state.

        Families that can step many rows at once override this; they fill the headers of the next
        states too, which are those of the states that rows start from.
        """
        inputs = rows.inputs
        for index in range(start, stop):
            self._load(rows, index)
            outcome = self.step(owned(inputs.actions[index]), dt_of(inputs, index))
            self.put_outcome(rows, index, outcome)
            if rows.next_states is not None:
                self.save(rows.next_states[index])

    def _load(self, rows: Rows, index: int) -> None:
        """Write the state that row `index` starts from; copy its header to the next state."""
        inputs = rows.inputs
        rows.cursor[0] = index
        given = inputs.states[0 if len(inputs.states) == 1 else index]
        if rows.next_states is not None:
            rows.next_states[index, :HEADER_NBYTES] = given[:HEADER_NBYTES]
        self.write(given[HEADER_NBYTES:])
        if inputs.seeds is not None:
            self.reseed(int(inputs.seeds[index]))

    def put_outcome(self, rows: Rows, index: int, outcome: Outcome) -> None:
        """Write what `step` returned as row `index` of a batch."""
        obs, reward, terminated, truncated, info, n_step = outcome
        rows.rewards[index] = reward
        rows.terminateds[index] = terminated
        rows.truncateds[index] = truncated
        rows.n_step[index] = n_step
        if isinstance(rows.observations, list):
            rows.observations[index] = owned(obs)
        else:
            spaces.put(self.observation_space, rows.observations, index, obs)
        for name, column in rows.columns.items():
            column[index] = self.image() if name == "rgb" else info[name]
        if rows.infos is not None and info:
            rest = owned_info(info, rows.columns)
            if rest:
                rows.infos[index] = rest

    def rollout_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step rows `start` to `stop` through all their T actions, without coming back."""
        inputs = rows.inputs
        for index in range(start, stop):
            self._load(rows, index)
            actions, dt = inputs.actions[index], dt_of(inputs, index)
            ended = False
            frames = 0
            obs: Any = None
            info: dict[str, Any] = {}
            terminated = truncated = False
            for time in range(inputs.horizon):
                reward = 0.0
                if not ended:
                    obs, reward, terminated, truncated, info, n_step = self.step(
                        owned(actions[time]), dt
                    )
                    frames += n_step
                    ended = terminated or truncated
                rows.rewards[index, time] = reward
                rows.terminateds[index, time] = terminated
                rows.truncateds[index, time] = truncated
                if isinstance(rows.observations, list):
                    rows.observations[index * inputs.horizon + time] = owned(obs)
                elif rows.observations is not None:
                    place = (index, time)
                    spaces.put(self.observation_space, rows.observations, place, obs)
            rows.n_step[index] = frames
            if rows.infos is not None and info:
                rows.infos[index] = owned_info(info, self.columns)
            if rows.next_states is not None:
                self.save(rows.next_states[index])

    def save(self, row: Row) -> None:
        """Read the current state into a stamped `row` ``(state_nbytes,)``."""
        used = self.read(row[HEADER_NBYTES:])
        if used is not None:
            row[16:24].view(np.uint64)[0] = used
            row[HEADER_NBYTES + used :] = 0

    # What it looks like

    @abc.abstractmethod
    def image(self) -> NDArray[np.uint8]:
        """Return a picture of the current state, ``(height, width, 3) uint8``."""

    def keep_picture(self) -> Any:
        """Return what `give_picture` needs after other states were written, ``None`` for nothing.

        Only for simulators whose picture is not a function of the state.
        """
        return None

    def give_picture(self, picture: Any) -> None:
        """Take back what `keep_picture` returned for the state just written."""

    def wrapper_names(self) -> Sequence[str]:
        """Return the names of the wrappers around the simulator, outermost first."""
        names, env = [], self.env
        while isinstance(env, gymnasium.Wrapper):
            names.append(type(env).__name__)
            env = env.env
        return names

    def close(self) -> None:
        """Release what the simulator holds; may be called again."""
        self.env.close()
