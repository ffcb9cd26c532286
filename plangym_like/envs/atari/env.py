"""Atari 2600 games on the Arcade Learning Environment (ALE).

The emulator's own sticky actions are off. Instead, a layer around the emulator repeats actions, so
that the previous action and the random generator can be part of the state. A payload consists of
the length of the emulator's serialised state, the previous action, the serialised state itself,
zeros up to the reserved length and, with ``render_mode="rgb_array"``, the screen, because the
screen cannot be computed from the emulator's state. A random generator follows if one is used.

In Montezuma's Revenge, infos contain the player's position: ``info["room"]``, ``info["x"]`` and
``info["y"]``.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome, Rows
from plangym_like.batch.simulator import Simulator
from plangym_like.envs.atari.emulator import PlannableAle
from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.kernel import Kernel
from plangym_like.envs.wrapping import omit_unread_screens
from plangym_like.errors import InputError, SnapshotError, StateCapacityError, StateFormatError
from plangym_like.states.rows import HEADER_NBYTES, Row, padded

_HEAD = struct.Struct("<qq")
_SLACK = 64
_COUNTS = ("lives", "episode_frame_number", "frame_number")


class AtariCodec(Codec):
    """Saves the emulator's state, the previous action and, if `images` is true, the screen.

    Parameters
    ----------
    base : PlannableAle
    frameskip : int or (int, int)
    images : bool
        Whether states hold the screen.
    wrapped : bool
        Whether `base` has wrappers, which may draw random numbers.
    """

    def __init__(
        self, base: PlannableAle, frameskip: int | tuple[int, int], *, images: bool, wrapped: bool
    ) -> None:
        self._base, self._frameskip, self._images = base, frameskip, images
        self.saves_generator = base.stickiness > 0 or isinstance(frameskip, tuple) or wrapped
        self.columns = dict.fromkeys((*_COUNTS, *base.places), ((), np.dtype(np.int64)))
        # For most games, these are the emulator's own, one call less in each row.
        exact = base.states if base.quirk is None else None
        self._clone = exact.save if exact else base.clone
        self._restore = exact.restore if exact else base.restore
        base.ale.reset_game()
        height, width = base.ale.getScreenDims()
        self._image_shape = (height, width, 3)
        self._ale_nbytes = len(base.ale.cloneState().serialize()) + _SLACK
        self._image_at = _HEAD.size + padded(self._ale_nbytes)
        self.nbytes = self._image_at + images * padded(int(np.prod(self._image_shape)))
        # Whether rows hold only the emulator's state, without randomness, images or sound.
        self.plain = not (self.saves_generator or images or base.sound_obs)
        if base.sound_obs:
            self.exactness = "approximate"
            self.exactness_note = (
                "sound depends on the phase of the tone generators, which no emulator "
                "state holds; everything else is exact"
            )

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the game, the digest of its ROM, the version of ale-py and the settings."""
        base = self._base
        rom = ale_py.roms.get_rom_path(base._game)
        assert rom is not None
        settings = {
            key: value
            for key, value in base._ezpickle_kwargs.items()
            if key not in ("game", "obs_type", "render_mode", "frameskip")
        }
        own = {
            "repeat_action_probability": base.stickiness,
            "episodic_life": base.episodic_life,
        }
        return {
            "game": base._game,
            "rom": hashlib.md5(rom.read_bytes(), usedforsecurity=False).hexdigest(),
            "ale-py": ale_py.__version__,
            "settings": {**settings, **own},
            "frameskip": self._frameskip,
            "pictures": self._images,
        }

    # The emulator's state

    def save(self, memory: memoryview, start: int, end: int) -> None:
        """Write the emulator's state and the previous action to ``memory[start:end]``.

        Nearly all of the time is spent on saving the emulator's state.

        Raises
        ------
        StateCapacityError
            The state is longer than the bytes reserved for it.
        """
        saved = self._clone()
        length = len(saved)
        if length > self._ale_nbytes:
            raise StateCapacityError(
                f"the emulator's state has grown to {length} bytes, but {self._ale_nbytes} are "
                "reserved in each row: was another game loaded? Make a new environment"
            )
        _HEAD.pack_into(memory, start, length, self._base.previous)
        start += _HEAD.size
        memory[start : start + length] = saved
        memory[start + length : end] = bytes(end - start - length)

    def load(self, memory: memoryview, start: int) -> None:
        """Restore what `save` has written to `memory` from byte `start` on.

        Raises
        ------
        StateFormatError
            The bytes are not a state.
        """
        base = self._base
        length, previous = _HEAD.unpack_from(memory, start)
        if not base.states.shortest <= length <= self._ale_nbytes:
            raise StateFormatError(
                "a state row is damaged, or was not made by this library: its checksum matches, "
                f"but it announces an emulator state of {length} bytes"
            )
        start += _HEAD.size
        self._restore(bytes(memory[start : start + length]))
        base.settled, base.previous = True, previous

    # Payloads

    def read(self, payload: Row) -> None:
        base = self._base
        self.save(payload.data, 0, self._image_at)
        if self._images:
            image = payload[self._image_at :].reshape(self._image_shape)
            if base.image is not None:
                image[:] = base.image
            else:
                base.ale.getScreenRGB(image)

    def write(self, payload: Row) -> None:
        self.load(payload.data, 0)
        images = payload[self._image_at :]
        self._base.image = images.reshape(self._image_shape).copy() if self._images else None

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return RAM ``(N, 128)``, lives, frame numbers and previous actions, by name.

        The player's position is included if its address is known (see `PLACES` in `quirks`).
        """
        base, ale, count = self._base, self._base.ale, len(payloads)
        ram = np.empty((count, ale.getRAMSize()), np.uint8)
        numbers = np.empty((4, count), np.int64)
        with self._state_kept():
            for index, payload in enumerate(payloads):
                self.load(payload.data, 0)
                ale.getRAM(ram[index])
                frames = ale.getFrameNumber(), ale.getEpisodeFrameNumber()
                numbers[:, index] = base.lives(), *frames, base.previous
        names = "lives", "frame_number", "episode_frame_number", "previous_action"
        places = {name: ram[:, address].astype(int) for name, address in base.places.items()}
        return {"ram": ram, **dict(zip(names, numbers, strict=True)), **places}

    def build_state(self, payload: Row, physics: Mapping[str, Any]) -> None:
        """Replace the console's memory ``ram`` ``(128,)`` in `payload`, as ALE's ``setRAM`` does.

        The game reads it in its next frame; until then, the screen and the number of lives are
        those of `payload`.

        Raises
        ------
        InputError
            Another field is given, or ``ram`` is not 128 whole numbers from 0 to 255.
        """
        if unknown := sorted(physics.keys() - {"ram"}):
            raise InputError(
                f"make_state takes ram here, not {', '.join(unknown)}; a game keeps its variables "
                "in ram, and view_state(state)['ram'] is the present one"
            )
        if "ram" not in physics:
            return
        ale, ram = self._base.ale, _checked_ram(physics["ram"])
        with self._state_kept():
            self.load(payload.data, 0)
            for address in np.flatnonzero(ale.getRAM() != ram).tolist():
                ale.setRAM(address, ram.item(address))
            self.save(payload.data, 0, self._image_at)

    @contextlib.contextmanager
    def _state_kept(self) -> Iterator[None]:
        """Restore the current state at the end of a block that restores other states."""
        base = self._base
        if base.image is None and not base.settled:
            base.image = base.ale.getScreenRGB()
        saved, previous, image = base.clone(), base.previous, base.image
        try:
            yield
        finally:
            base.restore(saved)
            base.previous, base.image = previous, image


def _checked_ram(given: Any) -> NDArray[Any]:
    """Return `given` as an array of 128 whole numbers from 0 to 255; else, raise `InputError`."""
    ram = np.asarray(given)
    numbers = ram.dtype.kind in "iu" and ram.shape == (128,)
    if not numbers or (ram < 0).any() or (ram > 255).any():
        raise InputError(f"ram must be 128 whole numbers from 0 to 255, got {given!r}")
    return ram


class AtariKernel(Kernel):
    """Steps rows of one game in one loop.

    Parameters
    ----------
    base : PlannableAle
        The game, without wrappers.
    codec : AtariCodec
        Its codec, which must be `plain`.
    """

    is_vectorised = False

    def __init__(self, base: PlannableAle, codec: AtariCodec) -> None:
        self._base, self._codec = base, codec

    def disagreement(self, sim: Simulator, kind: str) -> str:
        return ""  # it calls the emulator, as a single step does

    def takes(self, rows: Rows) -> bool:
        inputs = rows.inputs
        return not inputs.horizon and inputs.seeds is None and "rgb" not in rows.columns

    @cached_property
    def _view(self) -> tuple[Callable[[], object], NDArray[np.uint8]]:
        """A function that observes the game, and the array that it writes the observation to.

        The emulator writes byte by byte, which is fast only in memory that is already in the cache.
        """
        base, ale = self._base, self._base.ale
        seen = np.empty(base.observation_space.shape or (), np.uint8)
        kinds: dict[str, Any] = {
            "rgb": ale.getScreenRGB,
            "grayscale": ale.getScreenGrayscale,
            "ram": ale.getRAM,
        }
        return partial(kinds[base._obs_type], seen), seen

    def step_one(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome]:
        """Step one row; afterwards, the game is in the next state."""
        codec = self._codec
        codec.load(row.data, HEADER_NBYTES)
        outcome = self._base.outcome(action, dt)
        fresh = row.copy()
        codec.save(fresh.data, HEADER_NBYTES, len(fresh))
        return fresh, outcome

    def step(self, rows: Rows, first: int, last: int) -> None:
        """Step the rows ``first:last``.

        Attributes are looked up before the loop, because a step takes only 80 us.
        """
        base, ale, inputs, cursor = self._base, self._base.ale, rows.inputs, rows.cursor
        load, play, save, lives = self._codec.load, base.play, self._codec.save, base.lives
        episode_frame_number, frame_number = ale.getEpisodeFrameNumber, ale.getFrameNumber
        observe, seen = self._view
        block = slice(first, last)
        memory, width, fresh, fresh_width = _memory_of(rows, block)
        held = np.broadcast_to(inputs.dt, inputs.count)[block].tolist()
        outcomes: list[tuple[Any, ...]] = []
        each = zip(
            range(first, last), inputs.actions[block], rows.observations[block], held, strict=True
        )
        for index, action, view, dt in each:
            cursor[0] = index
            load(memory, index * width + HEADER_NBYTES)
            outcomes.append((*play(action, dt), lives(), episode_frame_number(), frame_number()))
            observe()
            view[...] = seen
            if base.places:
                ram = ale.getRAM()
                for name, address in base.places.items():
                    rows.columns[name][index] = ram[address]
            if fresh is not None:
                at = index * fresh_width
                save(fresh, at + HEADER_NBYTES, at + fresh_width)
        counted = map(rows.columns.__getitem__, _COUNTS)
        columns = rows.rewards, rows.terminateds, rows.truncateds, rows.n_step, *counted
        for column, values in zip(columns, zip(*outcomes, strict=True), strict=True):
            column[block] = values


def _memory_of(rows: Rows, block: slice) -> tuple[memoryview, int, memoryview | None, int]:
    """Return the memory of the states and of the next states, and the bytes from row to row.

    Also copy the headers of the rows in `block`. If all rows share one state, its width is 0.
    """
    states, fresh = rows.inputs.states, rows.next_states
    width = 0 if len(states) == 1 else states.shape[1]
    if fresh is None:
        return states.reshape(-1).data, width, None, 0
    given = states[block] if width else states
    fresh[block, :HEADER_NBYTES] = given[:, :HEADER_NBYTES]
    return states.reshape(-1).data, width, fresh.reshape(-1).data, fresh.shape[1]


class AtariSimulator(GymnasiumSimulator):
    """A simulator of one Atari game.

    `make_state` takes ``ram`` ``(128,)``, the console's memory.

    Parameters
    ----------
    name : str
        ``ALE/<Game>-v5``, or a v0 or v4 id.
    frameskip : int or (int, int), optional
        Emulator frames per action; for a pair ``(low, high)``, a number in ``range(low, high)`` is
        drawn for each action. ``None`` means the value registered for the id (4 in v5).
    repeat_action_probability : float
        The probability that a frame repeats the previous action. The default is 0, as is usual in
        planning, even if another value is registered for the id.
    episodic_life : bool
        Whether losing a life ends the episode.
    obs_type : {"rgb", "grayscale", "ram", "coords"}, optional
        ``"coords"`` means the observation registered for the id.
    env_kwargs
        Arguments of ale-py: ``mode``, ``difficulty``, ``full_action_space``, ``continuous``, ...
    """

    family = "ATAR"
    checksum = True
    step_row_moves = True
    obs_types = ("rgb", "grayscale", "ram", "coords")
    rendered_obs_types = ()
    codec: AtariCodec

    def __init__(
        self,
        name: str,
        *,
        repeat_action_probability: float = 0.0,
        episodic_life: bool = False,
        obs_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not 0.0 <= repeat_action_probability <= 1.0:
            raise InputError(
                f"repeat_action_probability must be in [0, 1], got {repeat_action_probability}"
            )
        self._layer = {
            "repeat_action_probability": float(repeat_action_probability),
            "episodic_life": bool(episodic_life),
        }
        self.base: PlannableAle
        # In "ale_py:ALE/Pong-v5", ale_py is the module that registers the id; it has been imported.
        name = name.rpartition(":")[2]
        super().__init__(name, obs_type=None if obs_type == "coords" else obs_type, **kwargs)

    def _set_frameskip(self, frameskip: int | tuple[int, int] | None) -> None:
        assert isinstance(self.name, str)
        registered = gymnasium.spec(self.name).kwargs.get("frameskip", 4)
        chosen: Any = registered if frameskip is None else frameskip
        bounds = np.asarray(chosen)
        whole = bounds.dtype.kind in "iu"
        if whole and bounds.shape == () and bounds >= 1:
            self.frameskip = int(chosen)
        elif whole and bounds.shape == (2,) and 0 < bounds[0] < bounds[1]:
            self.frameskip = (int(bounds[0]), int(bounds[1]))
        else:
            raise InputError(
                "frameskip must be a whole number of at least 1, or a pair (low, high) with "
                f"low < high, got {frameskip!r}"
            )

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the game, wrapped in its time limit if it has one."""
        assert isinstance(self.name, str)
        spec = gymnasium.spec(self.name)
        given = dict(self.env_kwargs)
        limit = given.pop("max_episode_steps", None)
        unchecked = given.pop("disable_env_checker", True)
        if unchecked is None:
            unchecked = spec.disable_env_checker
        kwargs = {
            **spec.kwargs,
            **({} if self.obs_type is None else {"obs_type": self.obs_type}),
            **given,
            "frameskip": self.frameskip,
            "render_mode": self.render_mode,
            **self._layer,
        }
        if "game" not in kwargs:
            raise SnapshotError(
                f"{self.name} is not a game of ale-py: use plangym_like.make for other environments"
            )
        env: gymnasium.Env[Any, Any] = PlannableAle(**kwargs)
        env.unwrapped.spec = copy.copy(spec)
        env.unwrapped.spec.kwargs = {key: kwargs[key] for key in kwargs if key != "episodic_life"}
        if not unchecked:
            env = PassiveEnvChecker(env)
        limit = spec.max_episode_steps if limit is None else limit
        return env if limit in (None, -1) else TimeLimit(env, limit)

    def make_codec(self) -> AtariCodec:
        """Return the codec, after measuring the size of the emulator's states."""
        wrapped = self.env is not self.base
        self.base.is_bare = not wrapped
        if wrapped:
            omit_unread_screens(self.env)
        images = self.render_mode == "rgb_array"
        codec = AtariCodec(self.base, self.frameskip, images=images, wrapped=wrapped)
        # `None` if wrappers or options, such as sticky actions, rule it out.
        self._kernel = AtariKernel(self.base, codec) if codec.plain and not wrapped else None
        if wrapped:
            self.reset_once()
        return codec

    def make_kernel(self, kind: str) -> Kernel | None:
        """Return the kernel, or ``None`` if the game or its options do not allow it."""
        return self._kernel

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the fields of the codec and of the wrappers."""
        return {**self.codec.fingerprint_fields(), "wrappers": self.memory.fingerprint_fields()}

    # Stepping

    def step_row(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step one row; return the next row and the outcome.

        Return ``None`` if the game or its options do not allow the kernel.
        """
        kernel = self._kernel
        return None if kernel is None else kernel.step_one(row, action, dt)

    def step(self, action: Any, dt: int) -> Outcome:
        """Hold `action` for `dt` times the frameskip, or until the episode ends.

        If the game has wrappers, ``env.step`` is called up to `dt` times.
        """
        if self.env is self.base:
            return self.base.outcome(action, dt)
        self.base.frames = 0
        outcome = self.hold(action, dt)
        return *outcome[:5], self.base.frames

    @property
    def steps_env_alone(self) -> bool:
        """True, because the game itself skips frames."""
        return True

    # Images

    def image(self) -> NDArray[np.uint8]:
        """Return the screen ``(210, 160, 3)``.

        Without ``render_mode="rgb_array"``, states do not include the screen. After such a state is
        restored, the screen of the next frame is returned: one frame is run with the no-op action,
        and then undone.
        """
        base = self.base
        if base.image is None and base.settled:
            saved = base.clone()
            try:
                base.ale.act(0)
                image = base.ale.getScreenRGB()
            finally:
                base.restore(saved)
            base.image = image
        if base.image is not None:
            return base.image.copy()
        return base.ale.getScreenRGB()


class AtariEnv(FamilyEnv):
    """A game of the Arcade Learning Environment; see `AtariSimulator` for its options.

    plangym's options ``clone_seeds``, ``array_state`` and ``possible_to_win`` are accepted without
    effect: states are always complete, and always arrays.

    Examples
    --------
    >>> with AtariEnv("ALE/Pong-v5", obs_type="ram", frameskip=4) as env:
    ...     state, obs, info = env.reset(seed=0)
    ...     step = env.step_batch([0, 2, 3], state)
    >>> step.obs.shape, step.infos["n_step"]
    ((3, 128), array([4, 4, 4]))
    """

    simulator_class = AtariSimulator

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        for unused in ("clone_seeds", "array_state", "possible_to_win"):
            kwargs.pop(unused, None)
        super().__init__(name, *args, **kwargs)
