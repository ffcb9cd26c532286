"""ale-py's environment, changed so that everything that affects later steps can be saved."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from ale_py import ALEInterface, LoggerMode
from ale_py.env import AtariEnv as AleEnv
from numpy.typing import NDArray

from plangym_like.envs.ale_leftovers import Leftovers
from plangym_like.envs.ale_memory import TIMERS, GolfCounts, LastTimer
from plangym_like.envs.ale_positions import Positions
from plangym_like.envs.ale_screen import Screen

# ALE does not save the frame buffers. These games draw only parts of them, so a frame can show
# pixels from before a restore. So that results depend only on the restored state, a few frames are
# run from a fixed state before every restore, and every step starts from a restored state.
_UNSETTLED = frozenset(
    {
        "air_raid",
        "amidar",
        "koolaid",
        "krull",
        "qbert",
        "tetris",
        "tic_tac_toe_3d",
        "trondead",
        "video_checkers",
        "yars_revenge",
    }
)
# This game sometimes also draws objects before it writes to the registers that position them. Its
# memory was wrong after 6 of 6,000 restores (for every other game, after none of 6,000).
_POSITIONED = "yars_revenge"
# Steps of these games start from a restored state too, because saving rounds the phase of a clock.
_ROUNDED = frozenset({"pitfall2"})
# The addresses of the player's position in memory: game -> info key -> address. They were found by
# playing the game. Rooms are numbered as on the game's map, from 1; x grows to the right and y
# upward, in pixels.
PLACES = {"montezuma_revenge": {"room": 3, "x": 42, "y": 43}}


class PlannableAle(AleEnv):
    """ale-py's environment, with sticky actions implemented in Python, not in the emulator.

    A saved state can therefore include the previous action and the random generator.
    """

    # Returns the observation, even if `unread` is true.
    observe = AleEnv._get_obs

    def __init__(
        self, *, repeat_action_probability: float, episodic_life: bool, **kwargs: Any
    ) -> None:
        # ale-py sets this too, but only after it has printed its banner.
        ALEInterface.setLoggerMode(LoggerMode.Error)
        super().__init__(repeat_action_probability=0.0, **kwargs)
        self.stickiness = repeat_action_probability
        self.episodic_life = episodic_life
        self.places = PLACES.get(self._game, {})
        self.codes = np.array([action.value for action in self._action_set])
        self.previous = 0
        self.frames = 0
        self.settled = False
        self.image: NDArray[np.uint8] | None = None
        # Whether a state was restored after the last frame; the screen then shows another state.
        self.stale = False
        # If true, no wrapper reads the observations, and they are all zeros.
        self.unread = False
        self._neutral: bytes | None = None
        # While Tic-Tac-Toe 3D computes its move, it draws only a part of the second buffer.
        self._settling_frames = 4 if self._game == "tic_tac_toe_3d" else 2
        self._restores_first = self._game in _UNSETTLED | _ROUNDED
        self._golf = GolfCounts() if self._game == "miniature_golf" else None
        self._timer: LastTimer | None = None
        if self._game in _UNSETTLED or self._game in TIMERS:
            self._draw_neutral()
        self.ale.reset_game()
        beginning = self.ale.cloneState().serialize()
        if self._golf is not None:
            beginning = self._golf.written_into(beginning)
        self._beginning = beginning, self.ale.getScreenRGB()
        self.leftovers = Leftovers(self.ale, beginning, self.load_game)
        self._positions = Positions(beginning) if self._game == _POSITIONED else None
        # Returns the number of lives, even if no frame has run since a state was restored.
        self.lives = self._atlantis2_lives if self._game == "atlantis2" else self.ale.lives
        # The frameskip if actions are discrete, nothing is random and no game-specific correction
        # is needed; otherwise 0.
        corrections = self._neutral, self._golf, self._timer, self._positions
        special = any(each is not None for each in corrections)
        simple = not (self.continuous or self.stickiness or special)
        self.plain_frames = self._frameskip if simple and isinstance(self._frameskip, int) else 0

    @cached_property
    def screen(self) -> Screen:
        """The emulator's `Screen`, which converts only changed pixels to colours."""
        return Screen(self.ale)

    def _draw_neutral(self) -> None:
        """Reach a state in the middle of play that is the same in every process.

        For the games in `TIMERS`, it is used to make `_timer`; for others, it becomes `_neutral`.
        """
        self.ale.setInt("random_seed", 0)
        self.load_game()
        self.ale.reset_game()
        for _ in range(64):
            self.ale.act(0)
        if self._game in TIMERS:
            self._timer = LastTimer(self.ale, TIMERS[self._game])
        else:
            self._neutral = self.ale.cloneState().serialize()
        self.seed_game()
        self.load_game()

    def _atlantis2_lives(self) -> int:
        # ALE's own number of lives belongs to the last frame that ran, not to a restored state.
        return 0 if self.ale.game_over(with_truncation=False) else int(self.ale.getRAM()[0x71])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        self.settled = self.stale = False
        self.image = None
        self.leftovers.forget()
        if seed is None:
            result = super().reset(options=options)
        else:
            result = self._begin(seed)
        self.previous = 0
        if self._golf is not None:
            self._golf.reset()
        if self._neutral is not None:
            self.settle()
        return result

    def _begin(self, seed: int) -> tuple[Any, Any]:
        """Seed and reset the game; load the game again (0.1 s) only if necessary.

        An emulator without sticky actions draws no random numbers, so the game begins in the same
        state for every seed. A plain reset does not clear the frame counters, but restoring the
        initial state does. A plain reset does not clear the tone generators either. In a few games,
        such as Solaris and Berzerk, it also leaves behind memory that is visible on the screen.
        """
        seeds = self.seed_game(seed)
        self.ale.reset_game()
        state, screen = self._beginning
        same = np.array_equal(self.ale.getScreenRGB(), screen)
        if same and not self.sound_obs and self.leftovers.are_as_at_the_beginning():
            self.leftovers.load(state)
        else:
            self.load_game()
            self.ale.reset_game()
        info: Any = self._get_info()
        info["seeds"] = seeds
        return self._get_obs(), info

    def settle(self) -> None:
        """Save and restore the current state, so that the next step starts from a restored state.

        The current image is kept.
        """
        self.image = self.ale.getScreenRGB()
        self.restore(self.clone())

    def clone(self) -> bytes:
        """Return the emulator's complete state, serialised."""
        saved = self.leftovers.save()
        return saved if self._golf is None else self._golf.written_into(saved)

    def restore(self, saved: bytes) -> None:
        """Restore the serialised state `saved` exactly, whichever frames ran before.

        Raises
        ------
        StateFormatError
            The emulator rejects the state.
        """
        leftovers = self.leftovers
        if self._neutral is not None:
            leftovers.prepare(True)
            leftovers.load(self._neutral)
            for _ in range(self._settling_frames):
                self.ale.act(0)
        if self._timer is not None:
            leftovers.prepare(True)
            leftovers.load(saved)
            self._timer.recall(self.ale)
        if self._positions is not None:
            leftovers.load(self._positions.placing(saved))
            self.ale.act(0)
        leftovers.restore(saved)
        if self._golf is not None:
            self._golf.read_from(saved)
        self.settled = True

    def hold(self, action: Any, dt: int) -> tuple[float, int]:
        """Hold `action` for `dt` times the frameskip, or until the game ends.

        Return the sum of the rewards, and the number of frames that ran.
        """
        if self._restores_first and not self.settled:
            self.restore(self.clone())
        if not self.plain_frames:
            return self._hold_corrected(action, dt)
        act, over = self.ale.act, self.ale.game_over
        code, frames = self.codes.item(action), dt * self.plain_frames
        self.settled = self.stale = False
        self.image, self.previous = None, code
        reward, ran = float(act(code)), 1
        while ran < frames and not over():
            reward += act(code)
            ran += 1
        self.frames += ran
        return reward, ran

    def _hold_corrected(self, action: Any, dt: int) -> tuple[float, int]:
        """Do what `hold` does, for all games and options for which `plain_frames` is 0."""
        if self.continuous:
            chosen, strength = self._joystick(action)
        else:
            chosen, strength = int(self.codes[action]), 1.0
        self.settled = self.stale = False
        act, over, golf = self.ale.act, self.ale.game_over, self._golf
        skip = self._frameskip
        reward, frames = 0.0, 0
        self.image = None
        for _ in range(dt):
            span = skip if isinstance(skip, int) else int(self.np_random.integers(*skip))
            for _ in range(span):
                if self.stickiness and self.np_random.random() < self.stickiness:
                    reward += act(self.previous, strength)
                else:
                    self.previous = chosen
                    reward += act(chosen, strength)
                frames += 1
                if golf is not None:
                    golf.follow(self.ale.getRAM())
                if over():
                    self.frames += frames
                    return reward, frames
        self.frames += frames
        return reward, frames

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        lives = self.lives()
        reward, _ = self.hold(action, 1)
        lost = self.episodic_life and self.lives() < lives
        return (
            self._get_obs(),
            reward,
            self.ale.game_over(with_truncation=False) or lost,
            self.ale.game_truncated(),
            self._get_info(),
        )

    def _get_obs(self) -> Any:
        return self._blank if self.unread else self.observe()

    @cached_property
    def _blank(self) -> NDArray[Any]:
        space = self.observation_space
        assert space.shape is not None
        return np.zeros(space.shape, space.dtype)

    def _get_info(self) -> Any:
        info: Any = AleEnv._get_info(self)
        if self.places:
            info.update(self.player())
        return info

    def player(self) -> dict[str, int]:
        """Return the player's position as a dict with the same keys as `places`."""
        ram = self.ale.getRAM()
        return {name: int(ram[address]) for name, address in self.places.items()}

    def _joystick(self, action: NDArray[Any]) -> tuple[int, float]:
        # ale-py's own environment accepts only single precision.
        radius, angle, fire = np.asarray(action, np.float32)
        limit = self.continuous_action_threshold
        x, y = radius * np.cos(angle), radius * np.sin(angle)
        event = self.map_action_idx(
            left_center_right=int(x > limit) - int(x < -limit),
            down_center_up=int(y > limit) - int(y < -limit),
            fire=fire > limit,
        )
        return event.value, radius
