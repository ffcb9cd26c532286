"""Atari 2600 games on the Arcade Learning Environment (ALE).

The emulator's own sticky actions are off. Instead, a layer around the emulator repeats actions, so
that the previous action and the random generator can be part of the state. A state row holds the
emulator's serialised state, the previous action and, if one is used, the random generator. With
``render_mode="rgb_array"`` it also holds the screen, because the screen cannot be computed from the
emulator's state. In Montezuma's Revenge, infos contain the player's position: ``info["room"]``,
``info["x"]`` and ``info["y"]``.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like.batch.arrays import Outcome
from plangym_like.batch.simulator import EnvStep
from plangym_like.envs.ale_game import PlannableAle
from plangym_like.envs.ale_rows import ALE_AT, COUNTS, HEAD, AleRows, outgrown, wrong_length
from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.fast_form import FastForm
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.preprocessed_atari import is_screen_unread
from plangym_like.errors import InputError, SnapshotError
from plangym_like.snapshots.base_settings import AttributeSettings, ClassSettings, Settings
from plangym_like.states.rows import Row, padded

_SLACK = 64
# The attributes of a game that change in use: rows hold them, or a restore sets them.
_CHANGING = ("frames", "image", "previous", "settled", "stale", "unread")


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
        self.columns = dict.fromkeys((*COUNTS, *base.places), ((), np.dtype(np.int64)))
        base.ale.reset_game()
        height, width = base.ale.getScreenDims()
        self._image_shape = (height, width, 3)
        self.ale_nbytes = len(base.ale.cloneState().serialize()) + _SLACK
        self._image_at = ALE_AT + padded(self.ale_nbytes)
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
        images: Any = self._images
        if images and self.saves_generator:
            images = "before the generator"
        return {
            "game": base._game,
            "rom": hashlib.md5(rom.read_bytes(), usedforsecurity=False).hexdigest(),
            "ale-py": ale_py.__version__,
            "settings": {**settings, **own},
            "frameskip": self._frameskip,
            "pictures": images,
        }

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return RAM ``(N, 128)``, lives, frame numbers and previous actions, by name.

        The player's position is included if its address is known (see `PLACES` in `ale_game`).
        """
        base, ale = self._base, self._base.ale
        names = "ram", "lives", "frame_number", "episode_frame_number"
        values = []
        with self._state_kept():
            for payload in payloads:
                base.restore(self._unpacked(payload)[0])
                values.append(
                    (ale.getRAM(), base.lives(), ale.getFrameNumber(), ale.getEpisodeFrameNumber())
                )
        columns = zip(*values, strict=True) if values else ((),) * len(names)
        named = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
        for name, address in base.places.items():
            named[name] = named["ram"][:, address].astype(np.int64)
        named["previous_action"] = payloads[:, 8:16].copy().view(np.int64)[:, 0]
        return named

    @contextlib.contextmanager
    def _state_kept(self) -> Iterator[None]:
        """Restore the current state at the end of a block that restores other states."""
        base = self._base
        if base.image is None and not base.stale:
            base.image = base.ale.getScreenRGB()
        saved, image, stale = base.clone(), base.image, base.stale
        try:
            yield
        finally:
            base.restore(saved)
            base.image, base.stale = image, stale

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
        base, ram = self._base, _checked_ram(physics["ram"])
        with self._state_kept():
            base.restore(self._unpacked(payload)[0])
            for address in np.flatnonzero(base.ale.getRAM() != ram).tolist():
                base.ale.setRAM(address, ram.item(address))
            self._pack(payload, base.clone())

    def read(self, payload: Row) -> None:
        """Write the emulator's state and the previous action into `payload`.

        The screen is written too, if states hold it. Nearly all of the time is spent on saving the
        emulator's state.
        """
        base = self._base
        HEAD.pack_into(payload.data, 0, 0, base.previous)
        self._pack(payload, base.clone())
        if self._images:
            image = payload[self._image_at :].reshape(self._image_shape)
            if base.image is not None:
                image[:] = base.image
            else:
                base.ale.getScreenRGB(image)

    def _pack(self, payload: Row, saved: bytes) -> None:
        """Write the serialised state `saved` and its length into `payload`."""
        length, memory = len(saved), payload.data
        if length > self.ale_nbytes:
            raise outgrown(length, self.ale_nbytes)
        memory[:8] = length.to_bytes(8, "little")
        end = ALE_AT + length
        memory[ALE_AT:end] = saved
        payload[end : self._image_at] = 0

    def write(self, payload: Row) -> None:
        """Restore the emulator, the previous action and, if states hold it, the screen."""
        base = self._base
        saved, previous = self._unpacked(payload)
        base.restore(saved)
        base.previous = previous
        base.stale = not self._images
        if self._images:
            base.image = payload[self._image_at :].reshape(self._image_shape).copy()
        else:
            base.image = None

    def settings(self) -> Sequence[Settings]:
        base = self._base
        return AttributeSettings(base, _CHANGING), ClassSettings(type(base))

    def _unpacked(self, payload: Row) -> tuple[bytes, int]:
        """Return the emulator's serialised state and the previous action that `payload` holds."""
        memory = payload.data
        length, previous = HEAD.unpack_from(memory)
        if not self._base.leftovers.shortest <= length <= self.ale_nbytes:
            raise wrong_length(length)
        return bytes(memory[ALE_AT : ALE_AT + length]), previous


def _checked_ram(given: Any) -> NDArray[Any]:
    """Return `given` as an array of 128 whole numbers from 0 to 255; else, raise `InputError`."""
    ram = np.asarray(given)
    numbers = ram.dtype.kind in "iu" and ram.shape == (128,)
    if not numbers or (ram < 0).any() or (ram > 255).any():
        raise InputError(f"ram must be 128 whole numbers from 0 to 255, got {given!r}")
    return ram


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
    shown_attributes = ("get_ram",)
    obs_types = ("rgb", "grayscale", "ram", "coords")
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
        self.base.unread = wrapped and is_screen_unread(self.env)
        codec = AtariCodec(
            self.base,
            self.frameskip,
            images=self.render_mode == "rgb_array",
            wrapped=wrapped,
        )
        # The fast form; ``None`` if wrappers or options, such as sticky actions, rule it out.
        is_plain = codec.plain and not wrapped and self.base.plain_frames > 0
        self._rows = AleRows(self.base, codec.ale_nbytes) if is_plain else None
        if wrapped:
            self.reset_once()
        return codec

    def make_fast_form(self, kind: str) -> FastForm | None:
        """Return the fast form, or ``None`` if the game or its options do not allow it."""
        return self._rows

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the fields of the codec and of the wrappers."""
        return {**self.codec.fingerprint_fields(), "wrappers": self.memory.fingerprint_fields()}

    # Stepping

    def step_row(self, row: Row, action: Any, dt: int) -> tuple[Row, Outcome] | None:
        """Step one row; return the next row and the outcome.

        Return ``None`` if the game or its options do not allow the fast form.
        """
        rows = self._rows
        return None if rows is None else rows.step_one(row, action, dt)

    def step(self, action: Any, dt: int) -> Outcome:
        """Hold `action` for `dt` times the frameskip, or until the episode ends.

        If the game has wrappers, ``env.step`` is called up to `dt` times.
        """
        base = self.base
        if self.env is base:
            ale, lives = base.ale, base.lives() if base.episodic_life else 0
            reward, frames = base.hold(action, dt)
            over = ale.game_over(with_truncation=False)
            if base.episodic_life:
                over = over or base.lives() < lives
            truncated = ale.game_truncated()
            return base.observe(), reward, over, truncated, base._get_info(), frames
        base.frames = 0
        outcome = self.hold(action, dt)
        return *outcome[:5], base.frames

    def step_env(self, action: Any) -> EnvStep:
        """Call ``env.step`` once and return its result; the game itself skips frames."""
        return self.env.step(action)

    # Images

    def image(self) -> NDArray[np.uint8]:
        """Return the screen ``(210, 160, 3)``.

        Without ``render_mode="rgb_array"``, states do not include the screen. After such a state is
        restored, the screen of the next frame is returned: one frame is run with the no-op action,
        and then undone.
        """
        base = self.base
        if base.image is None and base.stale:
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

    def keep_image(self) -> NDArray[np.uint8]:
        """Return the screen, which the emulator's states do not include."""
        return self.image()

    def give_image(self, image: NDArray[np.uint8]) -> None:
        """Use `image` as the screen until the next frame."""
        self.base.image = image

    def get_ram(self) -> NDArray[np.uint8]:
        """Return the console's memory, ``(128,) uint8``."""
        ram: NDArray[np.uint8] = self.base.ale.getRAM()
        return ram


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
