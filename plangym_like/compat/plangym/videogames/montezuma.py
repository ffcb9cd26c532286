"""Montezuma's Revenge with the player's position; a death can end an episode."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from plangym_like.compat.plangym.videogames import AtariEnv, ale_to_ram

GAME = "ALE/MontezumaRevenge-v5"
# The rooms on the map of a level, row by row; -1 where there is no room.
PYRAMID = [
    [-1, -1, -1, 0, 1, 2, -1, -1, -1],
    [-1, -1, 3, 4, 5, 6, 7, -1, -1],
    [-1, 8, 9, 10, 11, 12, 13, 14, -1],
    [15, 16, 17, 18, 19, 20, 21, 22, 23],
]
# The addresses of these values in the console's memory
_ROOM, _DYING, _LEVEL, _LIVES, _OBJECTS = 3, 55, 57, 58, 65
# The bits of the keys in the byte of the objects
KEY_BITS = 0b1110
# The number of pixels of each object on the screen: hammer, three keys, two swords, torch
OBJECT_PIXELS = (50, 40, 40, 40, 37, 37, 42)
_KEY_PIXELS = 40
# The red value of the player's face, the first row of the playing field, the area of the objects
_FACE, _FIELD, _SHELF = 228, 50, (slice(25, 45), slice(55, 110), 0)
_NOOPS = 3


class MontezumaPosLevel:
    """The player's level, score (or objects), room, and position in the room in pixels."""

    __slots__ = ("level", "room", "score", "x", "y")

    def __init__(self, level: int, score: Any, room: int, x: float, y: float) -> None:
        self.__setstate__((level, score, room, x, y))

    @property
    def tuple(self) -> tuple[int, Any, int, float, float]:
        """The five values, in the order of the constructor."""
        return self.level, self.score, self.room, self.x, self.y

    def __getstate__(self) -> Any:
        return self.tuple

    def __setstate__(self, values: Any) -> None:
        self.level, self.score, self.room, self.x, self.y = values

    def __hash__(self) -> int:
        return hash(self.tuple)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MontezumaPosLevel) and self.tuple == other.tuple

    def __repr__(self) -> str:
        return f"Level={self.level} Room={self.room} Objects={self.score} x={self.x} y={self.y}"


class CustomMontezuma(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tracks the player's position, and ends an episode when the player dies.

    The room and the level come from the console's memory, and the position in the room comes from
    the pixels of the player's face.

    Parameters
    ----------
    env : gymnasium.Env, optional
        The game, with the screen as its observation and one frame per step. By default, the wrapper
        makes the game.
    check_death : bool
        Whether a death ends the episode. Otherwise, reaching room 8 ends it, unless
        ``death_room_8=False``.
    obs_type : {"rgb", "grayscale", "ram", "coords"}
        ``"coords"`` are x, y, the room, and the byte that encodes the objects, ``(4,) float32``.
    score_objects : bool
        Whether ``pos.score`` holds the objects that the player carries, as bits, instead of the
        score.
    objects_from_pixels : bool
        Whether the objects are found on the screen instead of in memory.
    objects_remember_rooms : bool
        With `objects_from_pixels`, whether ``pos.score`` is a tuple of objects, each with the room
        where it was found.
    only_keys : bool
        Whether only keys count as objects.
    death_room_8 : bool
        See `check_death`.
    render_mode : str, optional
        The render mode of the game, if the wrapper makes it.
    x_repeat : int
        The factor by which x is multiplied.
    """

    # The attributes of this wrapper that a state holds
    state_attributes: ClassVar[tuple[str, ...]] = ("_pos", "cur_score", "cur_steps", "cur_lives")

    def __init__(
        self,
        env: gymnasium.Env[Any, Any] | None = None,
        *,
        check_death: bool = True,
        obs_type: str = "rgb",
        score_objects: bool = False,
        objects_from_pixels: bool = False,
        objects_remember_rooms: bool = False,
        only_keys: bool = False,
        death_room_8: bool = True,
        render_mode: str | None = "rgb_array",
        x_repeat: int = 1,
    ) -> None:
        if env is None:
            options: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": 0.0}
            env = gymnasium.make(
                f"ale_py:{GAME}", max_episode_steps=-1, render_mode=render_mode, **options
            )
        super().__init__(env)
        self.check_death, self._death_room_8 = check_death, death_room_8
        self.score_objects, self.objects_from_pixels = score_objects, objects_from_pixels
        self.objects_remember_rooms, self.only_keys = objects_remember_rooms, only_keys
        self._obs_type, self._x_repeat = obs_type, x_repeat
        self._pos: tuple[Any, ...] = (0, 0, 1, 0.0, 0.0)
        self.cur_score, self.cur_steps, self.cur_lives = 0.0, 0, 5
        shown: Any = env.observation_space
        if obs_type == "coords":
            self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        elif obs_type == "ram":
            self.observation_space = spaces.Box(0, 255, (128,), np.uint8)
        elif obs_type == "grayscale":
            self.observation_space = spaces.Box(0, 255, shown.shape[:2], np.uint8)

    @property
    def pos(self) -> MontezumaPosLevel:
        """The player's level, score (or objects), room and position."""
        return MontezumaPosLevel(*self._pos)

    def get_ram(self) -> NDArray[np.uint8]:
        """Return the console's memory."""
        return ale_to_ram(self.unwrapped.ale)  # type: ignore[attr-defined]

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode, and step three frames with the no-op action."""
        obs, info = self.env.reset(**kwargs)
        for _ in range(_NOOPS):
            obs, *_, info = self.env.step(0)
        self.cur_score, self.cur_steps, self.cur_lives = 0.0, 0, 5
        self._pos = (0, 0, 1, 0.0, 0.0)
        self._pos = self.pos_from_obs(self.get_face_pixels(obs), obs).tuple
        return self._observed(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step one frame."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.cur_score += float(reward)
        self.cur_steps += 1
        self._pos = self.pos_from_obs(self.get_face_pixels(obs), obs).tuple
        if self.check_death:
            terminated = self.is_ram_death() or terminated
        elif self._death_room_8:
            terminated = terminated or self.pos.room == 8
        return self._observed(obs), reward, terminated, truncated, info

    def _observed(self, obs: NDArray[np.uint8]) -> NDArray[Any]:
        if self._obs_type == "coords":
            return self.get_coords()
        if self._obs_type == "ram":
            return self.get_ram()
        if self._obs_type == "grayscale":
            grey: NDArray[np.uint8] = self.unwrapped.ale.getScreenGrayscale()  # type: ignore[attr-defined]
            return grey
        return obs

    def get_coords(self) -> NDArray[np.float32]:
        """Return the player's x, y and room, and the byte that encodes the objects, ``(4,)``."""
        place = self.pos
        return np.array([place.x, place.y, place.room, self.get_ram()[_OBJECTS]], np.float32)

    @staticmethod
    def get_room_xy(room: int) -> tuple[int, int] | None:
        """Return the column and row of a room on the level map, or ``None`` if the map lacks it."""
        for y, row in enumerate(PYRAMID):
            if room >= 0 and room in row:
                return row.index(room), y
        return None

    def get_face_pixels(self, obs: NDArray[np.uint8]) -> set[tuple[int, int]]:
        """Return the pixels of the player's face, ``(y, x)`` in the playing field."""
        rows, columns = np.nonzero(obs[_FIELD:, :, 0] == _FACE)
        return set(zip(rows.tolist(), columns.tolist(), strict=True))

    def pos_from_obs(
        self, face_pixels: set[tuple[int, int]], obs: NDArray[np.uint8]
    ) -> MontezumaPosLevel:
        """Return the player's position; x and y stay the same while no face is visible."""
        _, score, _, x, y = self._pos
        if face_pixels:
            y, x = np.mean(list(face_pixels), axis=0).tolist()
            x *= self._x_repeat
        ram = self.get_ram()
        room = int(ram[_ROOM])
        if not self.score_objects:
            score = self.cur_score
        elif self.objects_from_pixels:
            score = self.get_objects_from_pixels(obs, room, score or ())
        else:
            score = int(ram[_OBJECTS]) & (KEY_BITS if self.only_keys else 0xFF)
        return MontezumaPosLevel(int(ram[_LEVEL]), score, room, x, y)

    def get_objects_from_pixels(self, obs: NDArray[np.uint8], room: int, old_objects: Any) -> Any:
        """Return the objects that the screen shows, as one bit for each of `OBJECT_PIXELS`.

        If `objects_remember_rooms` is true, return a tuple of pairs ``(pixels, room)`` instead.
        Objects that are in `old_objects` keep their room.
        """
        import cv2

        shelf = (obs[_SHELF] != 0).astype(np.uint8)
        areas = cv2.connectedComponentsWithStats(shelf)[2][1:, cv2.CC_STAT_AREA].tolist()
        known = list(old_objects) if self.objects_remember_rooms else []
        bits, found = 0, []
        for index, pixels in enumerate(OBJECT_PIXELS):
            if pixels not in areas or (self.only_keys and pixels != _KEY_PIXELS):
                continue
            areas.remove(pixels)
            bits |= 1 << index
            earlier = next((pair for pair in known if pair[0] == pixels), None)
            if earlier is not None:
                known.remove(earlier)
            found.append(earlier or (pixels, room))
        return tuple(found) if self.objects_remember_rooms else bits

    def is_ram_death(self) -> bool:
        """Return whether the player is dying, or has lost a life in this episode."""
        ram = self.get_ram()
        self.cur_lives = max(self.cur_lives, int(ram[_LIVES]))
        return bool(ram[_DYING]) or int(ram[_LIVES]) < self.cur_lives


_OPTIONS = (
    *("check_death", "score_objects", "objects_from_pixels", "objects_remember_rooms"),
    *("only_keys", "death_room_8", "x_repeat"),
)


class MontezumaEnv(AtariEnv):
    """Montezuma's Revenge with the player's position; a death ends an episode.

    Parameters
    ----------
    name : str
        Has no effect.
    obs_type : {"rgb", "grayscale", "ram", "coords"}
        ``"coords"`` are x, y, the room, and the byte that encodes the objects.
    kwargs
        As in `AtariEnv` and `CustomMontezuma`.

    Examples
    --------
    >>> env = MontezumaEnv(obs_type="coords")
    >>> state, obs, info = env.reset()
    >>> obs.shape, int(obs[2])  # the game begins in room 1
    ((4,), 1)
    >>> env.close()
    """

    AVAILABLE_OBS_TYPES = {"coords", "rgb", "grayscale", "ram", None}  # noqa: RUF012
    AVAILABLE_RENDER_MODES = {"human", "rgb_array", None}  # noqa: RUF012

    def __init__(
        self,
        name: str = "PlanMontezuma-v0",
        frameskip: int = 1,
        *,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        del name
        self._options = {key: kwargs.pop(key) for key in _OPTIONS if key in kwargs}
        super().__init__(GAME, frameskip, render_mode=render_mode, **kwargs)

    def _core_kwargs(self) -> dict[str, Any]:
        return {**super()._core_kwargs(), "obs_type": "rgb"}

    def _make_core(self, wrappers: Any) -> Any:
        tracker = CustomMontezuma, {**self._options, "obs_type": self.obs_type}
        return super()._make_core([tracker, *wrappers])

    def clone(self, **kwargs: Any) -> Self:
        """Return another environment made with the same arguments, updated with `kwargs`."""
        return super().clone(**{**self._options, **kwargs})
