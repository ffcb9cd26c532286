"""Atari 2600 games on the Arcade Learning Environment (ALE).

The emulator runs without stickiness of its own; ours is a layer whose memory (the previous action)
and randomness are part of the state. A state row holds the emulator's serialised state, the
previous action and, only where something draws from it, the random generator. With
``render_mode="rgb_array"`` it holds the screen too, because the screen cannot be recomputed from
an emulator state. Games whose places are known say where the player is: ``info["room"]``, ``["x"]``
and ``["y"]`` in Montezuma's Revenge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from plangym_like import random_state
from plangym_like.batches import Rows
from plangym_like.envs.ale_game import PlannableAle
from plangym_like.envs.ale_rows import ALE_AT, COUNTS, HEAD, outgrown, step_plain_rows, wrong_length
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.errors import InputError
from plangym_like.ownership import owned
from plangym_like.plan_env import PlanEnv
from plangym_like.simulator import Outcome, as_reward
from plangym_like.states import Row, padded

_SLACK = 64


class AtariSimulator(GymnasiumSimulator):
    """One emulator.

    Parameters
    ----------
    name : str
        ``ALE/<Game>-v5``, or a v0 or v4 id.
    frameskip : int or (int, int), optional
        Emulator frames per action, applied once; a pair is drawn from anew for each action.
        ``None`` keeps what the id registers (4 in v5).
    repeat_action_probability : float
        Stickiness; 0 unless given (planning's convention), whatever the id registers.
    episodic_life : bool
        A lost life ends the episode.
    obs_type : {"rgb", "grayscale", "ram", "coords"}, optional
        ``"coords"`` means what the id registers.
    env_kwargs
        ale-py's own: ``mode``, ``difficulty``, ``full_action_space``, ``continuous``, ...
    """

    family = "ATAR"
    checksum = True
    obs_types = ("rgb", "grayscale", "ram", "coords")

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
                f"repeat_action_probability lies in [0, 1], got {repeat_action_probability}"
            )
        self._layer = {
            "repeat_action_probability": float(repeat_action_probability),
            "episodic_life": bool(episodic_life),
        }
        self.base: PlannableAle
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
                "frameskip is a whole number of at least 1, or a pair of them (low, high) with "
                f"low < high, got {frameskip!r}"
            )

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the game, with the time limit that its id registers, if any."""
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
        env: gymnasium.Env[Any, Any] = PlannableAle(**kwargs)
        env.unwrapped.spec = spec
        if not unchecked:
            env = PassiveEnvChecker(env)
        limit = spec.max_episode_steps if limit is None else limit
        return env if limit in (None, -1) else TimeLimit(env, limit)

    def prepare(self) -> None:
        """Reset the emulator once, to learn the size of its states."""
        base = self.base
        base.ale.reset_game()
        self._bare = self.env is base and not base.sound_obs
        self._random = (
            base.stickiness > 0 or isinstance(self.frameskip, tuple) or self.env is not base
        )
        if self.env is base:
            self.plain_infos = False
            self.columns = dict.fromkeys((*COUNTS, *base.places), ((), np.dtype(np.int64)))
        height, width = base.ale.getScreenDims()
        self._picture_shape = (height, width, 3)
        self._ale_nbytes = len(base.ale.cloneState().serialize()) + _SLACK
        if base.sound_obs:
            self.exactness = "approximate"
            self.exactness_note = (
                "what is heard depends on the phase of the tone generators, which no emulator "
                "state holds; all else is exact"
            )
        if self.env is not base:
            super().prepare()

    # What is the state

    def base_nbytes(self) -> int:
        """Emulator, previous action, generator where used, screen where rendered."""
        self._random_at = ALE_AT + padded(self._ale_nbytes)
        self._picture_at = self._random_at + random_state.GENERATOR_NBYTES * self._random
        pictured = self.render_mode == "rgb_array"
        self._end = self._picture_at + pictured * int(np.prod(self._picture_shape))
        return self._end

    def meaning(self) -> Mapping[str, Any]:
        """Return what the states of this game and configuration depend on."""
        base = self.base
        rom = ale_py.roms.get_rom_path(base._game)
        assert rom is not None
        settings = {
            key: value
            for key, value in base._ezpickle_kwargs.items()
            if key not in ("game", "obs_type", "render_mode", "frameskip")
        }
        return {
            "game": base._game,
            "rom": hashlib.md5(rom.read_bytes(), usedforsecurity=False).hexdigest(),
            "ale-py": ale_py.__version__,
            "settings": {**settings, **self._layer},
            "frameskip": self.frameskip,
            "pictures": self.render_mode == "rgb_array",
            "wrappers": self.memory.meaning(),
        }

    def fields(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return RAM ``(N, 128)``, lives, frame numbers, previous action, wrappers' memory.

        Where a game's places are known (`plangym_like.envs.ale_places`), they are named too.
        """
        base = self.base
        saved, picture = base.clone(), self.image()
        columns: dict[str, list[Any]] = {
            "ram": [],
            "lives": [],
            "frame_number": [],
            "episode_frame_number": [],
        }
        for payload in payloads:
            base.restore(self._emulator(payload))
            columns["ram"].append(base.ale.getRAM())
            columns["lives"].append(base.lives())
            columns["frame_number"].append(base.ale.getFrameNumber())
            columns["episode_frame_number"].append(base.ale.getEpisodeFrameNumber())
        base.restore(saved)
        base.picture = picture
        named = {name: np.array(values) for name, values in columns.items()}
        for name, address in base.places.items():
            named[name] = named["ram"][:, address].astype(np.int64)
        named["previous_action"] = payloads[:, 8:16].copy().view(np.int64)[:, 0]
        return {**named, **self.memory.fields(payloads[:, padded(self._end) :])}

    # How is it read

    def read_base(self, payload: Row) -> None:
        """Serialise the emulator; 20 us on top of which everything else is small."""
        base = self.base
        text = base.clone()
        length = len(text)
        if length > self._ale_nbytes:
            raise outgrown(length, self._ale_nbytes)
        HEAD.pack_into(payload.data, 0, length, base.previous)
        end = ALE_AT + length
        payload[ALE_AT:end] = np.frombuffer(text, np.uint8)
        payload[end : self._random_at] = 0
        if self._random:
            memory = random_state.save_generator(base.np_random)
            payload[self._random_at : self._picture_at] = np.frombuffer(memory, np.uint8)
        if self._end > self._picture_at:
            picture = payload[self._picture_at : self._end].reshape(self._picture_shape)
            if base.picture is not None:
                picture[:] = base.picture
            else:
                base.ale.getScreenRGB(picture)

    # How is it written

    def write_base(self, payload: Row) -> None:
        """Restore the emulator and the layer around it."""
        base = self.base
        base.restore(self._emulator(payload))
        base.previous = HEAD.unpack_from(payload.data)[1]
        if self._random:
            memory = payload[self._random_at : self._picture_at]
            base._np_random = random_state.load_generator(memory, base._np_random)
        if self._end > self._picture_at:
            picture = payload[self._picture_at : self._end].reshape(self._picture_shape)
            base.picture = picture.copy()
        else:
            base.picture = None
            self._stale = True

    def _emulator(self, payload: Row) -> bytes:
        """Return the emulator's serialised state in a payload."""
        length = HEAD.unpack_from(payload.data)[0]
        if not self.base.leftovers.shortest <= length <= self._ale_nbytes:
            raise wrong_length(length)
        return payload[ALE_AT : ALE_AT + length].tobytes()

    # How is it stepped

    _stale = False

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the game; the emulator runs at least 68 frames."""
        self._stale = False
        return super().reset(seed, options)

    def step(self, action: Any, dt: int) -> Outcome:
        """Step the bare game, or the chain of wrappers `dt` times."""
        self._stale = False
        base = self.base
        if self.env is base:
            lives = base.lives()
            reward, frames = base.hold(action, dt)
            lost = base.episodic_life and base.lives() < lives
            over = base.ale.game_over(with_truncation=False)
            truncated = base.ale.game_truncated()
            return base._get_obs(), reward, over or lost, truncated, dict(base._get_info()), frames
        total, ran = 0.0, 0
        for left in range(dt, 0, -1):
            base.frames = 0
            obs, gain, terminated, truncated, info = self.env.step(
                action if left == 1 else owned(action)
            )
            total += as_reward(gain)
            ran += base.frames
            if terminated or truncated:
                break
        return obs, total, bool(terminated), bool(truncated), info, ran

    def step_rows(self, rows: Rows, start: int, stop: int) -> None:
        """Step bare games whose rows hold the emulator alone without coming back in between."""
        alone = self._bare and not self._random and self._end == self._picture_at
        if alone and self.base.plain_frames and rows.inputs.seeds is None:
            step_plain_rows(self.base, rows, start, stop, self._ale_nbytes)
            self._stale = True
        else:
            super().step_rows(rows, start, stop)

    # What it looks like

    def image(self) -> NDArray[np.uint8]:
        """Return the screen ``(210, 160, 3)``.

        Where a state was written whose row holds no screen (no ``render_mode="rgb_array"``), this
        is the frame that the game shows next: one frame is run without touching the joystick, and
        taken back.
        """
        base = self.base
        if base.picture is None and self._stale:
            saved = base.clone()
            base.ale.act(0)
            picture = base.ale.getScreenRGB()
            base.restore(saved)
            base.picture = picture
        if base.picture is not None:
            return base.picture.copy()
        return base.ale.getScreenRGB()

    def keep_picture(self) -> NDArray[np.uint8]:
        """Return the screen, which no emulator state holds."""
        return self.image()

    def give_picture(self, picture: NDArray[np.uint8]) -> None:
        """Show `picture` until a frame runs."""
        self.base.picture = picture

    def get_ram(self) -> NDArray[np.uint8]:
        """Return the console's memory, ``(128,) uint8``."""
        ram: NDArray[np.uint8] = self.base.ale.getRAM()
        return ram


class AtariEnv(PlanEnv):
    """A game of the Arcade Learning Environment; see `AtariSimulator` for its options.

    ``clone_seeds``, ``array_state`` and ``possible_to_win`` are taken for the sake of those who
    come from plangym and mean nothing here: states are arrays and always hold what they must.
    """

    simulator_class = AtariSimulator

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        for unused in ("clone_seeds", "array_state", "possible_to_win"):
            kwargs.pop(unused, None)
        super().__init__(name, *args, **kwargs)
