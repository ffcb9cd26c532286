"""An environment that says itself what its state is: ``save_state`` and ``load_state``.

What is the state: what ``save_state()`` returns (numbers, arrays, text, and nests of them), and
the environment's own generator. How is it read and written: by these two methods. How is a chunk
stepped: by ``step_states``, where the environment has that form, else row by row. All three are
tried out against ``step`` when the environment is made, and refused where they do not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from plangym_like import random_state, spaces
from plangym_like.batches import Rows
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.own_chunks import OwnChunks, agree
from plangym_like.errors import SnapshotError, StateCapacityError, StateFormatError
from plangym_like.phases import RESTORE, SAVE, STEP
from plangym_like.plan_env import PlanEnv
from plangym_like.random_state import GENERATOR_NBYTES
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.configuration import describe, qualified_name
from plangym_like.snapshots.known_wrappers import TRANSPARENT, chain
from plangym_like.states import HEADER_NBYTES, Row, padded

_METHODS = ("save_state", "load_state")
_SLACK = 1024


class OwnSimulator(GymnasiumSimulator):
    """A Gymnasium environment with these methods.

    ``save_state()`` returns the state as plain data; an array of one shape makes the smallest rows
    and lets chunks be stepped at once. ``load_state(saved)`` makes such a value, which is its own,
    the state. ``step_states(states, actions)``, optional, takes ``(N, *shape)`` states and N
    actions and returns the next states, observations, rewards, terminateds and truncateds, each
    with N rows, just as ``step`` would; it draws no random numbers and gives no infos.

    The arguments are `GymnasiumSimulator`'s; ``state_capacity`` is for states that are no arrays.

    Raises
    ------
    SnapshotError
        A method is missing, what it returns is not plain data, or it does not agree with ``step``.
    """

    family = "OWNS"
    checksum = True
    tried: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._chunks: OwnChunks | None = None
        self._agreeing: dict[str, bool] = {}
        if callable(getattr(self.base, "step_states", None)):
            self._chunks = self._tried_chunks()

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the environment, if it has both methods."""
        env = super().make_env()
        missing = [name for name in _METHODS if not callable(getattr(env.unwrapped, name, None))]
        if missing:
            env.close()
            raise SnapshotError(
                f"{qualified_name(type(env.unwrapped))} has no {' and no '.join(missing)}"
            )
        return env

    def _tried_chunks(self) -> OwnChunks | None:
        if any(type(wrapper) not in TRANSPARENT for wrapper in chain(self.env)) or self._pictures:
            return None
        if self._array is None or not spaces.is_leaf(self.observation_space):
            raise SnapshotError(
                "step_states needs states that are arrays of one shape, and observations that are "
                "one array each"
            )
        agree(self.env, self.base)
        assert isinstance(self.frameskip, int)
        return OwnChunks(self.base.step_states, self.observation_space, self.frameskip)

    # What is the state

    def base_nbytes(self) -> int:
        """Find out what ``save_state`` returns, and return the bytes to reserve."""
        saved = self.base.save_state()
        self._array: NDArray[Any] | None = None
        if isinstance(saved, np.ndarray) and saved.dtype != object:
            self._array = np.empty_like(saved)
            return GENERATOR_NBYTES + saved.nbytes
        needed = GENERATOR_NBYTES + 8 + len(self._encoded(saved))
        return self.state_capacity or 2 * needed + _SLACK

    def meaning(self) -> Mapping[str, Any]:
        """Return id or callable, class, arguments, wrappers and version."""
        form = None if self._array is None else [self._array.dtype.str, *self._array.shape]
        return {
            **super().meaning(),
            "class": qualified_name(type(self.base)),
            "callable": None if isinstance(self.name, str) else describe(self.name),
            "state": form,
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return ``state`` ``(N, *shape)`` where it is an array, and the wrappers' parts."""
        named = self.memory.fields(payloads[:, self._base_nbytes :])
        return named if self._array is None else {"state": self._arrays(payloads), **named}

    def _arrays(self, payloads: Row) -> NDArray[Any]:
        assert self._array is not None
        end = GENERATOR_NBYTES + self._array.nbytes
        raw = np.ascontiguousarray(payloads[:, GENERATOR_NBYTES:end])
        return raw.view(self._array.dtype).reshape(len(payloads), *self._array.shape)

    def _encoded(self, saved: Any) -> bytes:
        try:
            return plain_data.encode(saved)
        except SnapshotError as error:
            raise SnapshotError(
                f"what {type(self.base).__name__}.save_state() returned cannot be kept: {error}"
            ) from error

    # How is it read

    def read_base(self, payload: Row) -> None:
        """Write the generator and what ``save_state`` returns."""
        memory = random_state.save_generator(vars(self.base).get("_np_random"))
        payload[:GENERATOR_NBYTES] = np.frombuffer(memory, np.uint8)
        saved = self.base.save_state()
        if self._array is None:
            data = self._encoded(saved)
            end = GENERATOR_NBYTES + 8 + len(data)
            if end > len(payload):
                raise StateCapacityError(
                    f"a state of {end} bytes does not fit the {len(payload)} reserved; make the "
                    f"environment with state_capacity={padded(2 * end)}"
                )
            payload[GENERATOR_NBYTES : GENERATOR_NBYTES + 8].view(np.uint64)[0] = len(data)
            payload[GENERATOR_NBYTES + 8 : end] = np.frombuffer(data, np.uint8)
        else:
            saved = np.asarray(saved)
            if saved.dtype != self._array.dtype or saved.shape != self._array.shape:
                raise SnapshotError(
                    f"{type(self.base).__name__}.save_state() returned {saved.dtype}{saved.shape}, "
                    f"and {self._array.dtype}{self._array.shape} when the environment was made"
                )
            end = GENERATOR_NBYTES + saved.nbytes
            payload[GENERATOR_NBYTES:end] = np.frombuffer(saved.tobytes(), np.uint8)
        payload[end:] = 0

    # How is it written

    def write_base(self, payload: Row) -> None:
        """Set the generator and call ``load_state``."""
        if self._array is None:
            used = int(payload[GENERATOR_NBYTES : GENERATOR_NBYTES + 8].view(np.uint64)[0])
            if used > len(payload) - GENERATOR_NBYTES - 8:
                raise StateFormatError("a state row is damaged: its length")
            start = GENERATOR_NBYTES + 8
            saved = plain_data.decode(payload[start : start + used].tobytes())
        else:
            saved = self._arrays(payload[None])[0].copy()
        base = self.base
        memory = payload[:GENERATOR_NBYTES].tobytes()
        base._np_random = random_state.load_generator(memory, vars(base).get("_np_random"))
        base.load_state(saved)

    # How is it stepped

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step a chunk at once where the environment can, else row by row."""
        chunks = None if rows.columns else self._chunks_for(rows)
        if chunks is None:
            super().step_rows(rows, start, stop)
        else:
            self._run_chunk(chunks.step_rows, rows, start, stop)

    def rollout_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Run a chunk at once where the environment can, else row by row."""
        chunks = self._chunks_for(rows)
        if chunks is None:
            super().rollout_rows(rows, start, stop)
        else:
            self._run_chunk(chunks.rollout_rows, rows, start, stop)

    def _chunks_for(self, rows: Rows) -> OwnChunks | None:
        """Return what steps `rows` at once, if it agrees for actions of their dtype."""
        if self._chunks is None or rows.inputs.seeds is not None:
            return None
        actions, space = rows.inputs.actions, self.action_space
        if not isinstance(actions, np.ndarray) or actions.dtype == space.dtype:
            return self._chunks
        kind = actions.dtype.char
        if kind not in self._agreeing:
            try:
                agree(self.env, self.base, kind)
                self._agreeing[kind] = True
            except SnapshotError:
                self._agreeing[kind] = False
        return self._chunks if self._agreeing[kind] else None

    def _run_chunk(
        self, run: Callable[..., NDArray[Any]], rows: Rows, start: int, stop: int
    ) -> None:
        clock = rows.clock
        if clock is not None:
            clock.start()
        given = self._given(rows, start, stop)
        if clock is not None:
            clock.lap(RESTORE)
        states = run(rows, start, stop, given)
        if clock is not None:
            clock.lap(STEP)
        self._put(rows, start, stop, states)
        if clock is not None:
            clock.lap(SAVE)

    def _given(self, rows: Rows, start: int, stop: int) -> NDArray[Any]:
        given = rows.inputs.states
        rows.cursor[0] = start
        if len(given) == 1:
            given = np.broadcast_to(given, (stop - start, given.shape[1]))
            return self._arrays(given[:, HEADER_NBYTES:])
        return self._arrays(given[start:stop, HEADER_NBYTES:])

    def _put(self, rows: Rows, start: int, stop: int, states: NDArray[Any]) -> None:
        if rows.next_states is None:
            return
        given = rows.inputs.states
        fresh = rows.next_states[start:stop, HEADER_NBYTES:]
        # The generator and what wrappers remember stay what they were.
        fresh[:] = (
            given[0, HEADER_NBYTES:] if len(given) == 1 else given[start:stop, HEADER_NBYTES:]
        )
        end = GENERATOR_NBYTES + states[0].nbytes
        raw = np.ascontiguousarray(states).reshape(stop - start, -1).view(np.uint8)
        fresh[:, GENERATOR_NBYTES:end] = raw


class OwnEnv(PlanEnv):
    """Plan over an environment that has ``save_state`` and ``load_state``; see `OwnSimulator`."""

    simulator_class = OwnSimulator
