"""Environments that define their state themselves.

Their class lists the attributes that are the state in ``state_attributes``, or it has methods:
``save_state()`` returns the state, and ``load_state(state)`` restores it. A state consists of
numbers, arrays, text, and nested containers of them. The optional method ``step_states`` steps many
rows at once; if the environment also has ``turns_of_states``, random legal moves are played to the
end of many games at once (`StatesKernel`). When the environment is made, all this is tested against
``step``; a `SnapshotError` is raised if it disagrees.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from plangym_like.batch import spaces
from plangym_like.batch.arrays import Rows
from plangym_like.batch.simulator import as_reset
from plangym_like.batch.spaces import fitted
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.game_positions import LCG_FACTOR
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.kernel import ArrayKernel, Kernel, Outcomes, States
from plangym_like.envs.own_codec import OwnCodec, SaveLoadCodec, declared_attributes, refusal
from plangym_like.envs.wrapping import drop_generators, first_reset
from plangym_like.errors import (
    ActionError,
    EnvApiError,
    InputError,
    PlangymError,
    RewardError,
    SnapshotError,
)
from plangym_like.processes.child import is_worker
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chain_pickle import ChainPickle
from plangym_like.snapshots.chains import close_copy, innermost
from plangym_like.snapshots.configuration import qualified_name
from plangym_like.snapshots.differences import attributes, differing_attributes
from plangym_like.snapshots.known_wrappers import visible
from plangym_like.states.random_state import restart
from plangym_like.states.rows import HEADER_NBYTES, Row

logger = logging.getLogger("plangym_like")
_METHODS = ("save_state", "load_state")


def _base_restorer(base: Any) -> Callable[[], None] | None:
    """Return a function that restores the present state of `base`, which was never reset.

    The random generators in its attributes are restored too, because ``save_state`` may leave out
    one that only resets use. Return ``None`` if ``save_state`` does not work yet.
    """
    attributes = vars(base)
    generators = {
        name: value for name, value in attributes.items() if isinstance(value, np.random.Generator)
    }
    try:
        kept = {name: copy.deepcopy(each.bit_generator) for name, each in generators.items()}
        saved = plain_data.encode((base.save_state(),))
    except Exception:
        return None

    def restore() -> None:
        (state,) = plain_data.decode(saved)
        base.load_state(state)
        for name, generator in generators.items():
            restart(generator.bit_generator, copy.deepcopy(kept[name]))
            attributes[name] = generator

    return restore


class SaveLoadSimulator(GymnasiumSimulator):
    """A simulator of a Gymnasium environment that defines its state itself.

    Its class may list the attributes that are its state: ``state_attributes = ["board", "score"]``.
    An entry is the name of an attribute, whose value may be any plain data, or a tuple of name and
    dtype for a number, or of name, dtype and shape for an array: ``("board", np.int8, (4, 4))``.
    Attributes with a dtype make rows of a fixed, small size, and are saved faster. Numbers must be
    Python's for ``int64``, ``float64`` and ``bool``, else NumPy's; arrays must be C-contiguous, and
    no two of them the same array or parts of one.

    Otherwise, ``save_state()`` returns the state as plain data. A C-contiguous array, with axes,
    that always has the same dtype and shape makes the smallest rows, and allows stepping many rows
    at once. ``load_state(saved)`` sets the state to ``saved``, and may keep this object.

    The state of the new environment is saved, and restored before the user's first reset. So the
    reset that is taken when the environment is made leaves no trace, such as a higher count of
    episodes. For an environment with ``state_attributes``, or whose ``save_state`` does not work
    before the first reset, this is done with a pickle, if it can be pickled.

    The optional ``step_states(states, actions)`` takes states ``(N, *shape)`` and N actions. It
    returns the same next states, observations, rewards, terminateds and truncateds as ``step``,
    each with N rows, but no infos. It must not draw random numbers.

    In a game of two players, 0 and 1, of whom one wins what the other loses, the optional
    ``turns_of_states(states)`` returns what the infos of these states say: ``action_mask``
    ``(N, A)`` and ``to_play`` ``(N,)``. Infos then hold these alone, and
    ``rollout_batch(..., legal=True)`` plays many games to the end at once if the action space is
    Discrete from 0, without ``frameskip`` or a time limit.

    The arguments are as in `GymnasiumSimulator`; ``state_capacity`` is for states that are not
    arrays. If ``requires_step_states`` is false, a ``step_states`` that does not do what ``step``
    does is not used, and a warning is logged.

    Raises
    ------
    SnapshotError
        The list and a method are missing, the state is not plain data, or ``step`` disagrees.
    """

    family = "OWNS"
    checksum = True
    always_tried: ClassVar[bool] = True
    codec_class: ClassVar[type[SaveLoadCodec]] = SaveLoadCodec
    codec: OwnCodec
    # Whether ``step_states`` does not do what ``step`` does.
    _is_wrong: bool = False
    # Another environment, which shows what options of resets change.
    _other: Any = None

    def __init__(self, *args: Any, requires_step_states: bool = True, **kwargs: Any) -> None:
        # Attributes that change without options, and those that rows do not hold.
        self._varying: set[str] = set()
        self._refused: set[str] = set()
        super().__init__(*args, **kwargs)
        if not self._steps_states():
            return
        try:
            self._check_step_states(np.dtype(self.action_space.dtype).char)
        except SnapshotError as error:
            if requires_step_states or self.tells_turns():
                raise
            self._is_wrong = True
            if not (self._is_copy or is_worker()):
                logger.warning("Rows are stepped one by one, without step_states: %s", error)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment; raise `SnapshotError` if it does not define its state."""
        env = super().make_env()
        base: Any = innermost(env)
        try:
            if declared_attributes(base) is None and not _has_methods(base):
                missing = [name for name in _METHODS if not callable(getattr(base, name, None))]
                raise SnapshotError(
                    f"{qualified_name(type(base))} has no {' and no '.join(missing)}"
                )
        except SnapshotError:
            # Some environments cannot be closed before their first reset.
            close_copy(env)
            raise
        return env

    def restorer(self) -> Callable[[], None] | None:
        """Return a function that restores the new environment and its wrappers, if possible."""
        restore_wrappers = restore_pickle = super().restorer()
        with contextlib.suppress(SnapshotError):
            restore_pickle = ChainPickle(self.env).restorer()
        restore_base = _base_restorer(self.base) if _has_methods(self.base) else None
        if restore_base is None:
            return restore_pickle

        def restore() -> None:
            try:
                restore_base()
            except Exception:
                # What save_state returned before the first reset was no state yet.
                found = restore_pickle
            else:
                found = restore_wrappers
            if found is not None:
                found()

        return restore

    def make_codec(self) -> OwnCodec:
        """Reset the environment, and return its codec."""
        # This reset is seeded, because the saved form of an unseeded generator has a different
        # length in each process.
        found = first_reset(self.env)
        kind = self.codec_class if _has_methods(self.base) else OwnCodec
        codec = kind(self.base, self.name, self.state_capacity)
        if self.tells_turns():
            space: Any = self.action_space
            codec.columns = {
                # The dtype that reset and step give it, so that it selects the same in batches.
                "action_mask": ((int(space.n),), _mask_dtype(as_reset(found)[1])),
                "to_play": ((), np.dtype(np.int64)),
            }
        drop_generators(self.env)
        return codec

    def _run_trial(self) -> str:
        """Check that a saved state can be restored, and run the trial."""
        payload = np.zeros(self.payload_nbytes, np.uint8)
        self.read(payload)
        try:
            self.codec.write(payload[: self.codec.nbytes])
        except PlangymError:
            raise
        except Exception as error:
            method = "load_state" if _has_methods(self.base) else "state_attributes"
            raise refusal(self.base, method, error) from error
        return super()._run_trial()

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; see `GymnasiumSimulator.reset`.

        Raises
        ------
        SnapshotError
            `options` change an attribute that no row holds.
        """
        if not options or self._is_copy:
            return super().reset(seed, options)
        before = attributes(self.env)
        found = super().reset(seed, options)
        if names := self._unsaved(before):
            super().reset(0)  # which does what it does without options
            raise SnapshotError(
                f"the options of reset change {', '.join(names)}, which no state row holds: add it "
                "to state_attributes, or to what save_state returns, or make the environment with "
                "snapshot='replay'"
            )
        return found

    def _unsaved(self, before: dict[str, bytes]) -> list[str]:
        """Return the names of attributes that a reset with options has changed, and no row holds.

        `before` are the attributes before this reset. Another environment shows which of them rows
        hold, and which of them change without options.
        """
        after, other = attributes(self.env), self._other or self.second_copy()
        if other is None:
            return []
        if self._other is None:
            self._other = other
            first = attributes(other.env)
            for seed in range(2):
                other.reset(seed)
                for _ in range(2):
                    self._varying.update(differing_attributes(first, attributes(other.env)))
                    with contextlib.suppress(Exception):
                        other.step(copy.deepcopy(self.action_space).sample(), 1)
        payload = np.zeros(self.payload_nbytes, np.uint8)
        self.read(payload)
        other.write(payload)
        changed = {*differing_attributes(before, after), *self._refused}
        names = changed.intersection(differing_attributes(after, attributes(other.env)))
        self._refused |= names - self._varying
        return sorted(names - self._varying)

    def close(self) -> None:
        """Release the simulator's resources; safe to call more than once."""
        if self._other is not None:
            self._other.close()
        super().close()

    def _steps_states(self) -> bool:
        """Return whether ``step_states`` can be used to step many rows at once."""
        own = callable(getattr(self.base, "step_states", None))
        return own and not (self._is_wrong or self._images or visible(self.env))

    def tells_turns(self) -> bool:
        """Return whether ``turns_of_states`` tells which actions are legal, and who moves."""
        tells = callable(getattr(self.base, "turns_of_states", None))
        return tells and isinstance(self.action_space, Discrete) and self._steps_states()

    @property
    def plays_out(self) -> bool:
        """Whether the environment tells its turns, each action is one step, and they start at 0."""
        if self.frameskip != 1 or not self.tells_turns():
            return False
        first: Any = getattr(self.action_space, "start", 0)  # actions are `Discrete`
        return bool(first == 0)

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step several rows, or play them out.

        If a block of rows raises an error, its halves are stepped, so that the error is that of the
        first row that raises one alone, and names this row.
        """
        legal, failure = rows.inputs.legal, None
        rows.cursor[0] = start
        if legal:
            self._check_plays_out(rows)
        try:
            if legal:
                self._states_kernel().play_out(rows, start, stop)
            else:
                super().step_rows(rows, start, stop)
        except Exception as error:
            kernel = None if stop - start == 1 else self.kernel_for(rows.inputs.actions)
            if kernel is None or not (legal or kernel.takes(rows)):
                raise
            failure = error
        if failure is not None:
            middle = (start + stop) // 2
            self.step_rows(rows, start, middle)
            self.step_rows(rows, middle, stop)
            failure.add_note(f"(raised for rows {start} to {stop - 1} together, for none alone)")
            rows.cursor[0] = start
            raise failure

    def _check_plays_out(self, rows: Rows) -> None:
        """Raise `InputError` if ``step_states`` cannot be used for `rows`."""
        if self.kernel_for(rows.inputs.actions) is None:
            raise InputError(
                f"legal=True calls {type(self.base).__name__}.step_states, which cannot be used "
                "now: a method was replaced in the environment, or it does not do what step does"
            )

    def _check_step_states(self, kind: str) -> None:
        """Raise `SnapshotError` if the results of ``step_states`` and ``step`` differ."""
        if self.codec.example is None or not spaces.is_leaf(self.observation_space):
            raise SnapshotError(
                "step_states needs states that are arrays of one shape, and observations that are "
                "one array each"
            )
        where = self._states_kernel().disagreement(self, kind)
        if where:
            raise SnapshotError(
                f"{type(self.base).__name__}.step_states does not do what step does: {where}. "
                "Leave step_states out if step draws random numbers or gives infos; only a game "
                "with turns_of_states and a Discrete action space may give action_mask and "
                "to_play, and no other infos"
            )

    def _states_kernel(self) -> StatesKernel:
        return StatesKernel(self)

    def make_kernel(self, kind: str) -> Kernel | None:
        """Return the kernel that calls ``step_states``, or ``None`` if that cannot be used."""
        return self._states_kernel() if self._steps_states() else None


def _mask_dtype(info: Any) -> np.dtype[Any]:
    """Return the dtype of the mask of legal actions in `info`; int8 if there is none of numbers."""
    mask = info.get("action_mask") if isinstance(info, Mapping) else None
    dtype = np.asarray(mask).dtype
    return dtype if dtype.kind in "biuf" else np.dtype(np.int8)


def _has_methods(base: Any) -> bool:
    return all(callable(getattr(base, name, None)) for name in _METHODS)


class OwnEnv(FamilyEnv):
    """A `PlanEnv` of an environment that defines its state itself; see `SaveLoadSimulator`.

    Examples
    --------
    >>> from gymnasium.envs.classic_control import PendulumEnv
    >>> class Pendulum(PendulumEnv):
    ...     state_attributes = [("state", float, (2,))]
    >>> env = OwnEnv(Pendulum)
    >>> state, obs, info = env.reset(seed=0)
    >>> env.step_batch([[0.5], [-0.5]], state).rewards.round(3)
    array([-0.762, -0.762])
    """

    simulator_class = SaveLoadSimulator


# Many rows at once


@dataclass(slots=True)
class ObservedStates(States):
    """The states ``(N, *shape)`` of N rows, and their last observations ``(N, *obs_shape)``."""

    states: NDArray[Any]
    obs: NDArray[Any]

    def _at(self, rows: NDArray[np.intp]) -> Any:
        return rows


class StatesKernel(ArrayKernel[ObservedStates]):
    """Steps blocks of rows by calling ``step_states(states, actions)`` of the environment.

    ``step_states`` takes states ``(N, *shape)`` and N actions; it returns the next states,
    observations, rewards, terminateds and truncateds. The random generator does not change. The
    optional ``turns_of_states`` takes states, and returns masks ``(N, A)`` of the legal actions and
    the players to move ``(N,)``.

    Parameters
    ----------
    sim : SaveLoadSimulator
        The simulator of the environment, whose observations are one array each.
    """

    def __init__(self, sim: Any) -> None:
        super().__init__(sim)
        example: NDArray[Any] = sim.codec.example
        self._step_states: Callable[..., Any] = sim.base.step_states
        self._turns_of_states: Callable[..., Any] | None = (
            sim.base.turns_of_states if sim.tells_turns() else None
        )
        self._name = type(sim.base).__name__
        self._shape, self._dtype = example.shape, example.dtype
        self._place = slice(HEADER_NBYTES, HEADER_NBYTES + example.nbytes)
        self._space: Any = sim.observation_space
        self._num_actions = int(getattr(sim.action_space, "n", 0))

    def takes(self, rows: Rows) -> bool:
        return "rgb" not in rows.columns and rows.inputs.seeds is None

    def use_for_frames(self) -> bool:
        return False  # the user's ``step`` may return any types

    def load(self, given: Row, count: int) -> ObservedStates:
        states = np.empty((count, *self._shape), self._dtype)
        states.reshape(count, -1).view(np.uint8)[:] = given[:, self._place]
        return ObservedStates(states, np.empty((count, *self._space.shape), self._space.dtype))

    def frame(self, states: ObservedStates, actions: NDArray[Any], out: Outcomes) -> None:
        count = len(states.states)
        next_states, obs, rewards, terminated, truncated = self._step_states(
            states.states.copy(), actions.copy()
        )
        shape, dtype = (count, *self._space.shape), np.dtype(self._space.dtype)
        states.obs[...] = fitted(self._space, obs, shape, dtype)
        states.states[...] = self._checked_states(next_states, count)
        if np.shape(rewards) != (count,):
            raise RewardError(
                f"step_states returned rewards of shape {np.shape(rewards)} for {count} rows"
            )
        out.rewards[...] = rewards
        out.terminated[...] = _checked_flags("terminateds", terminated, count)
        out.truncated[...] = _checked_flags("truncateds", truncated, count)

    def observe(self, states: ObservedStates, out: NDArray[Any]) -> None:
        out[...] = states.obs

    def store(self, states: ObservedStates, fresh: Row) -> None:
        fresh[:, self._place] = states.states.reshape(len(fresh), -1).view(np.uint8)

    def infos(self, states: ObservedStates) -> Mapping[str, NDArray[Any]]:
        if self._turns_of_states is None:
            return {}
        legal, to_play = self._turns(states.states)
        return {"action_mask": legal, "to_play": to_play}

    def play_out(self, rows: Rows, first: int, last: int) -> None:
        """Play each of the rows ``first:last`` to the end, or through its T actions.

        Actions that are not legal are replaced by random legal ones, drawn with the row's actions
        as the seed. The reward of the player to move is lost by the other one.

        Raises
        ------
        ActionError
            A game is over already: the state that is given has no legal action.
        EnvApiError
            A state has no legal action, although the game has not ended, or a player is neither 0
            nor 1.
        """
        block, count, horizon = slice(first, last), last - first, rows.inputs.horizon
        given = self._given(rows, block)
        plans = np.ascontiguousarray(rows.inputs.actions[block], np.int64)
        draws = np.array([zlib.crc32(plan) for plan in plans], np.uint64)
        # These have an axis of times first, because all games take a step together.
        taken, rewards = plans.T.copy(), np.zeros((horizon, count))
        movers, ended = np.zeros((horizon, count), np.int64), np.zeros((2, count), bool)
        lengths, on = np.full(count, horizon), np.arange(count)
        whole = states = self.load(given, count)
        for time in range(horizon):
            legal, to_play = self._turns(states.states)
            chosen = self._made_legal(taken[time, on], legal, draws, on, is_given=time == 0)
            out = Outcomes.empty(len(on))
            self.frame(states, chosen, out)
            taken[time, on], rewards[time, on], movers[time, on] = chosen, out.rewards, to_play
            if rows.observations is not None:  # those of a game that ends stay
                rows.observations[first + on, time:] = states.obs[:, None]
            over = out.terminated | out.truncated
            if over.any():
                done, left = over.nonzero()[0], (~over).nonzero()[0]
                ended[:, on[done]] = out.terminated[done], out.truncated[done]
                lengths[on[done]] = time + 1
                whole.put(on[done], states.take(done))
                on, states = on[left], states.take(left)
                if not len(on):
                    break
        if ((movers != 0) & (movers != 1)).any():
            raise EnvApiError(
                f"{self._name}.turns_of_states must return players 0 and 1, got {np.min(movers)} "
                f"to {np.max(movers)}"
            )
        whole.put(on, states)
        self._write(rows, block, taken.T, rewards.T, movers.T, lengths, ended)
        self._store(whole, given, None, rows, block)

    def _made_legal(
        self,
        actions: NDArray[Any],
        legal: NDArray[np.bool_],
        draws: NDArray[Any],
        on: NDArray[Any],
        *,
        is_given: bool,
    ) -> NDArray[Any]:
        """Replace `actions` ``(n,)`` that are not legal, in place, and return them.

        `draws` holds the last random number of each game, and `on` are the games that go on.
        `is_given` says whether their states are those that were given, which may have ended.
        """
        wrong = (~legal[np.arange(len(actions)), actions]).nonzero()[0]
        if len(wrong):
            numbers = draws[on[wrong]] * np.uint64(LCG_FACTOR) + np.uint64(1)
            draws[on[wrong]], masks = numbers, legal[wrong]
            counts = masks.sum(axis=1, dtype=np.uint64)
            if not counts.all() and is_given:
                raise ActionError(
                    f"action {actions[wrong][counts == 0][0]} cannot be played, because no action "
                    f"is legal, as {self._name}.turns_of_states says: this game is over"
                )
            if not counts.all():
                raise EnvApiError(
                    f"{self._name}.turns_of_states returned no legal action for a state that has "
                    "not ended"
                )
            places = ((numbers >> np.uint64(32)) * counts) >> np.uint64(32)
            actions[wrong] = (masks.cumsum(axis=1) > places[:, None]).argmax(axis=1)
        return actions

    @staticmethod
    def _write(
        rows: Rows,
        block: slice,
        taken: NDArray[Any],
        rewards: NDArray[Any],
        movers: NDArray[Any],
        lengths: NDArray[Any],
        ended: NDArray[np.bool_],
    ) -> None:
        """Write the results of games that were played out, with two players."""
        after = np.arange(rows.inputs.horizon) >= lengths[:, None] - 1
        rows.rewards[block], rows.columns["actions"][block] = rewards, taken
        for player in (0, 1):
            gains = np.where(movers == player, rewards, -rewards)
            rows.columns["rewards"][block, :, player] = gains
        rows.n_step[block] = lengths
        rows.terminateds[block], rows.truncateds[block] = after & ended[:, :, None]

    def _turns(self, states: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Return the legal actions ``(N, A)`` of states, and the players to move ``(N,)``."""
        assert self._turns_of_states is not None
        legal, to_play = map(np.asarray, self._turns_of_states(states.copy()))
        shape = (len(states), self._num_actions)
        if legal.shape != shape or to_play.shape != shape[:1]:
            raise EnvApiError(
                f"turns_of_states must return masks {shape} and players {shape[:1]}, got shapes "
                f"{legal.shape} and {to_play.shape}"
            )
        return legal.astype(bool, copy=False), to_play

    def _checked_states(self, next_states: Any, count: int) -> NDArray[Any]:
        """Return `next_states`, those of `count` rows, as an array.

        Raise `EnvApiError` if their shape or dtype is not that of states.
        """
        states, shape = np.asarray(next_states), (count, *self._shape)
        if states.shape != shape or states.dtype != self._dtype:
            raise EnvApiError(
                f"step_states returned next states {states.dtype}{states.shape} for {count} rows, "
                f"but each state is {self._dtype}{self._shape}"
            )
        return states


def _checked_flags(name: str, flags: Any, count: int) -> Any:
    """Return `flags`; raise `EnvApiError` unless there is one for each of `count` rows."""
    if np.shape(flags) != (count,):
        raise EnvApiError(
            f"step_states returned {name} of shape {np.shape(flags)} for {count} rows"
        )
    return flags
