"""Games of stable-retro, for consoles from the Atari 2600 to the Nintendo 64, with your own ROMs.

Payload of a row::

    24 bytes    the length of the emulator's state, and the screen's height and width
    ...         the emulator's state, zero padded, without the parts that differ between processes
                (see `plangym_like.envs.retro_addresses`)
    ...         the screen, which cannot be computed from the emulator's state
    40 bytes    the random generator, for wrappers that draw from it
    ...         the wrappers' state

The reward is the increase of the score since the last frame. After a restore, it is the increase
since the restored state. stable-retro includes one free game, ``Airstriker-Genesis-v0``. To add the
ROMs that you own, run ``python -m stable_retro.import FOLDER``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import pathlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import stable_retro
from numpy.typing import NDArray

from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.envs.retro_game import PlannableRetro
from plangym_like.errors import InputError, StateCapacityError, StateFormatError
from plangym_like.snapshots.base_settings import AttributeSettings, ClassSettings, Settings
from plangym_like.snapshots.configuration import describe
from plangym_like.states.rows import Row, padded

_HEAD = struct.Struct("<qqq")
_SLACK = 4096
# The attributes of a game that change in use, and those that only a reset reads.
_CHANGING = (
    *("_asleep", "_dirt", "addresses", "em", "image", "img", "ram"),
    *("initial_state", "statename", "movie", "movie_id", "movie_path"),
)
# The core of the only free game; this class was tested with it.
_TRIED = "genesis_plus_gx_libretro.so"


class RetroCodec(Codec):
    """Saves the emulator's state, and the screen, which cannot be computed from it.

    Parameters
    ----------
    base : PlannableRetro
        The game, reset at least once.
    env_kwargs : mapping
        Arguments of stable-retro.
    frameskip : int
    capacity : int, optional
        Bytes for the emulator's state.
    """

    def __init__(
        self,
        base: PlannableRetro,
        env_kwargs: Mapping[str, Any],
        frameskip: Any,
        capacity: int | None,
    ) -> None:
        self._base, self._kwargs, self._frameskip = base, dict(env_kwargs), frameskip
        self._screen_nbytes = base.screen().nbytes
        self._capacity = len(base.read_emulator()) + _SLACK if capacity is None else capacity
        self._screen_at = _HEAD.size + padded(self._capacity)
        self.nbytes = self._screen_at + padded(self._screen_nbytes)
        if not base.addresses.known:
            self.exactness = "approximate"
            self.exactness_note = (
                "emulators save addresses of their library, and this system does not report where "
                "the library is loaded: equal states have different bytes in different processes, "
                "so rows must not be compared"
            )
        elif base.core != _TRIED:
            self.exactness_note = (
                f"this game uses the core {base.core}; only {_TRIED} was tested to save equal "
                "states as equal bytes in every process"
            )
        scenario = self._file(self._kwargs.get("scenario") or "scenario")
        if "scripts" in json.loads(scenario.read_text()):
            self.exactness = "approximate"
            self.exactness_note = (
                f"the rewards of {base.gamename} come from a Lua script, and states do not hold "
                "the script's variables"
            )

    def _file(self, name: str) -> pathlib.Path:
        """Return the path of the file `name`, which defines the game's scenario or variables."""
        if name.endswith(".json"):
            return pathlib.Path(name)
        inttype = self._kwargs.get("inttype", stable_retro.data.Integrations.STABLE)
        return pathlib.Path(
            stable_retro.data.get_file_path(self._base.gamename, f"{name}.json", inttype)
        )

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the game, digests of its files, the arguments and the version of stable-retro."""
        base, kwargs = self._base, dict(self._kwargs)
        files = {
            "rom": pathlib.Path(base.rom),
            "scenario": self._file(kwargs.pop("scenario", None) or "scenario"),
            "variables": self._file(kwargs.pop("info", None) or "data"),
        }
        digests = {
            name: hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
            for name, file in files.items()
        }
        return {
            "game": base.gamename,
            **digests,
            "kwargs": {key: describe(value) for key, value in sorted(kwargs.items())},
            "frameskip": self._frameskip,
            "addresses": "relative",
            "stable-retro": importlib.metadata.version("stable-retro"),
        }

    def settings(self) -> Sequence[Settings]:
        return AttributeSettings(self._base, _CHANGING), ClassSettings(type(self._base))

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the game's variables (score, lives, ...) and its screen."""
        current = np.zeros(self.nbytes, np.uint8)
        self.read(current)
        found, screens, count = [], [], len(payloads)
        try:
            # Without payloads, the current state gives the names and shapes.
            for payload in payloads if count else current[None]:
                self.write(payload[: self.nbytes])
                found.append(dict(self._base.data.lookup_all()))
                screens.append(self._base.screen())
        finally:
            self.write(current)
        variables = {name: np.array([row[name] for row in found])[:count] for name in found[0]}
        return {**variables, "screen": np.stack(screens)[:count]}

    def read(self, payload: Row) -> None:
        emulator, screen = self._base.read_emulator(), self._base.screen()
        for what, needed, reserved in (
            ("emulator's state", len(emulator), self._capacity),
            ("screen", screen.nbytes, self._screen_nbytes),
        ):
            if needed > reserved:
                way = f"; make it with emulator_capacity={2 * needed}" if what[0] == "e" else ""
                raise StateCapacityError(
                    f"the {what} of {self._base.gamename} has grown to {needed} bytes, but "
                    f"{reserved} are reserved in each row{way}"
                )
        _HEAD.pack_into(payload.data, 0, len(emulator), *screen.shape[:2])
        _put(payload[_HEAD.size : self._screen_at], emulator)
        _put(payload[self._screen_at :], screen.reshape(-1))

    def write(self, payload: Row) -> None:
        """Restore the emulator, the screen, and the score from which the next reward is counted.

        Raises
        ------
        StateFormatError
            The row is damaged.
        """
        length, height, width = _HEAD.unpack_from(payload.data)
        nbytes = 3 * height * width
        if not (0 <= length <= self._capacity and 0 < nbytes <= self._screen_nbytes):
            raise StateFormatError("a state row is damaged: its lengths are wrong")
        screen = payload[self._screen_at : self._screen_at + nbytes].reshape(height, width, 3)
        self._base.write_emulator(payload[_HEAD.size : _HEAD.size + length], screen.copy())


class RetroSimulator(GymnasiumSimulator):
    """A simulator of one game. Unlike in stable-retro, a process may have many games.

    Parameters
    ----------
    name : str
        The name of a game in stable-retro; ``-v0`` may be left out.
    obs_type : {"rgb", "grayscale", "ram", "coords"}, optional
        ``"rgb"`` is the screen, ``"grayscale"`` its luminance, and ``"ram"`` the console's memory.
        ``"coords"``, a value of plangym's, is the screen too.
    emulator_capacity : int, optional
        Bytes reserved in each row for the emulator's state, whose length varies on some consoles.
    kwargs
        As in `GymnasiumSimulator`, and arguments of stable-retro: ``state`` (where episodes begin),
        ``scenario``, ``info``, ``use_restricted_actions``, ``players``, ``inttype``.

    Raises
    ------
    InputError
        stable-retro has no such game, or its ROM has not been imported.
    """

    family = "RETR"
    checksum = True
    obs_types = ("rgb", "grayscale", "ram", "coords")

    def __init__(self, name: str, *, emulator_capacity: int | None = None, **kwargs: Any) -> None:
        self._capacity = emulator_capacity
        self.base: PlannableRetro
        super().__init__(name, **kwargs)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the game, and give it the emulator of this process."""
        self._images = self.obs_type == "grayscale"
        game = str(self.name)
        inttype = self.env_kwargs.get("inttype", stable_retro.data.Integrations.STABLE)
        actions = self.env_kwargs.get("use_restricted_actions", stable_retro.Actions.FILTERED)
        if not isinstance(actions, stable_retro.Actions):
            raise InputError(
                f"use_restricted_actions must be a stable_retro.Actions, got {actions!r}"
            )
        if game + "-v0" in stable_retro.data.list_games(inttype):
            game += "-v0"
        try:
            stable_retro.data.get_romfile_path(game, inttype)
        except FileNotFoundError as error:
            known = game in stable_retro.data.list_games(inttype)
            raise InputError(
                f"the ROM of {game} is not imported: run python -m stable_retro.import FOLDER"
                if known
                else f"stable-retro has no game {game!r}; see stable_retro.data.list_games()"
            ) from error
        state = self.env_kwargs.get("state")
        file = f"{state}".removesuffix(".state") + ".state"
        if isinstance(state, str) and not stable_retro.data.get_file_path(game, file, inttype):
            states = stable_retro.data.list_states(game, inttype)
            raise InputError(f"{game} has no state {state!r}; it has {', '.join(states)}")
        env: gymnasium.Env[Any, Any] = PlannableRetro(
            game, ram=self.obs_type == "ram", **self.env_kwargs
        )
        return env

    def make_codec(self) -> RetroCodec:
        """Reset the game, and return its codec."""
        self.reset_once()
        return RetroCodec(self.base, self.env_kwargs, self.frameskip, self._capacity)

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the fields of the codec and of the wrappers."""
        return {**self.codec.fingerprint_fields(), "wrappers": self.memory.fingerprint_fields()}

    # Images and memory

    def image(self) -> NDArray[np.uint8]:
        """Return the screen ``(height, width, 3)``; no display is needed."""
        return self.base.screen().copy()

    def get_ram(self) -> NDArray[np.uint8]:
        """Return the console's memory."""
        self.base.wake()
        ram: NDArray[np.uint8] = self.base.get_ram()
        return ram


class RetroEnv(FamilyEnv):
    """A game of stable-retro; see `RetroSimulator`."""

    simulator_class = RetroSimulator


def _put(place: Row, data: NDArray[np.uint8]) -> None:
    place[: len(data)] = data
    place[len(data) :] = 0
