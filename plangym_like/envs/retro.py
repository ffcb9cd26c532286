"""Games of stable-retro, for consoles from the Atari 2600 to the Nintendo 64, with your own ROMs.

Payload of a row::

    24 bytes    the length of the emulator's state, and the screen's height and width
    ...         the emulator's state, zero padded, without the parts that differ between processes
                (see `Addresses`)
    ...         the screen, which cannot be computed from the emulator's state
    40 bytes    the random generator, for wrappers that draw from it
    ...         the wrappers' state

The reward is the increase of the score since the last frame. After a restore, it is the increase
since the restored state. stable-retro includes one free game, ``Airstriker-Genesis-v0``. To add the
ROMs that you own, run ``python -m stable_retro.import FOLDER``.

A process can have only one emulator. The game in use has the emulator; all other games keep their
states as bytes. Games may be used in several threads, but only one of them runs at a time.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib.metadata
import json
import struct
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
import stable_retro
from numpy.typing import NDArray
from stable_retro.enums import Actions, Observations, State

from plangym_like.envs.codec import Codec
from plangym_like.envs.family_env import FamilyEnv
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.errors import InputError, StateCapacityError, StateFormatError
from plangym_like.snapshots.configuration import describe
from plangym_like.states.rows import Row, padded
from plangym_like.support.fork_safety import new_lock

_HEAD = struct.Struct("<qqq")
_SLACK = 4096
# The core of the only free game; this class was tested with it.
_TRIED = "genesis_plus_gx_libretro.so"
# Memory is filled with these values, and in so many frames, to find what an emulator never writes.
_FILLINGS = (0xAA, 0x55)
_FRAMES = 8
_MAPS = Path("/proc/self/maps")
_COUNT = struct.Struct("<I")
_WORD = np.arange(8)
# In all pointers into one library, this byte and the higher ones have at most two different values.
_HIGH = 5


_Method = TypeVar("_Method", bound=Callable[..., Any])
# Held by the game that is using the emulator of this process.
_lock = new_lock()


def _alone(method: _Method) -> _Method:
    """Let only one game at a time run such a method, whatever its thread."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _lock:
            return method(self, *args, **kwargs)

    return cast("_Method", call)


class PlannableRetro(stable_retro.RetroEnv):  # type: ignore[misc]
    """A game that shares the emulator of the process with other games.

    Parameters
    ----------
    game : str
        The name of a game in stable-retro, such as ``"Airstriker-Genesis-v0"``.
    ram : bool
        Whether to observe the console's memory instead of the screen.
    kwargs
        Arguments of stable-retro: ``state``, ``scenario``, ``info``, ``use_restricted_actions``,
        ``players``, ``inttype``.
    """

    em: Any
    initial_state: Any
    # The game that is using the emulator of this process.
    _awake: weakref.ref[PlannableRetro] | None = None

    @_alone
    def __init__(
        self,
        game: str,
        *,
        ram: bool,
        state: Any = State.DEFAULT,
        use_restricted_actions: Any = Actions.FILTERED,
        **kwargs: Any,
    ) -> None:
        self._asleep: NDArray[np.uint8] | None = None
        self.image: NDArray[np.uint8] | None = None
        _send_to_sleep()
        super().__init__(
            game,
            state,
            use_restricted_actions=use_restricted_actions,
            obs_type=Observations.RAM if ram else Observations.IMAGE,
            render_mode="rgb_array",
            **kwargs,
        )
        PlannableRetro._awake = weakref.ref(self)
        inttype = kwargs.get("inttype", stable_retro.data.Integrations.STABLE)
        if not self.initial_state:
            # Without an initial state, stable-retro's reset would continue from the current state.
            self.initial_state = self.em.get_state()
        self.rom = stable_retro.data.get_original_romfile_path(game, inttype)
        self.core = Path(stable_retro.get_core_path(stable_retro.get_romfile_system(self.rom))).name
        self.addresses = Addresses(self.core)
        self._dirt = slice(0, 0), np.empty(0, np.int64)
        super().reset()
        self._find_dirt()

    # The state of the emulator

    def _find_dirt(self) -> None:
        """Find the bytes of a state that the emulator never writes.

        These bytes hold old content of the process's memory. To find them, a state is read into
        memory filled with one value, and then into memory filled with another. A byte that has the
        filling's value both times was not written.
        """
        nbytes = len(self.em.get_state())
        unwritten = np.ones(nbytes, bool)
        for _ in range(_FRAMES):
            for value in _FILLINGS:
                for _ in range(2):
                    filling = bytes([value]) * nbytes
                    del filling
                found = np.frombuffer(self.em.get_state(), np.uint8)
                if len(found) != nbytes:
                    return
                unwritten &= found == value
            self.em.step()
        written = np.flatnonzero(~unwritten)
        end = int(written[-1]) + 1 if len(written) else 0
        self._dirt = slice(end, nbytes), np.flatnonzero(unwritten[:end])

    @_alone
    def read_emulator(self) -> NDArray[np.uint8]:
        """Return the emulator's state, as bytes that are the same in every process.

        The number of bytes may vary from state to state.
        """
        if self._asleep is not None:
            return self._asleep
        data = np.frombuffer(self.em.get_state(), np.uint8)
        tail, gaps = self._dirt
        if len(data) == tail.stop:
            data = data[: tail.start].copy()
            data[gaps] = 0
        return self.addresses.strip(data)

    @_alone
    def write_emulator(self, data: NDArray[np.uint8], image: NDArray[np.uint8]) -> None:
        """Set the emulator's state to `data` and its screen to `image`.

        The next reward is the increase of the score since this state.
        """
        self.wake(restore=False)
        self._put(data)
        self.image = image
        if self._obs_type == Observations.RAM:
            self.ram = self.get_ram()
        else:
            self.img = image

    def _put(self, data: NDArray[np.uint8]) -> None:
        tail, _ = self._dirt
        text = self.addresses.fill_in(data).tobytes()
        if len(text) == tail.start:
            text += bytes(tail.stop - tail.start)
        if not self.em.set_state(text):
            raise StateFormatError(f"the emulator of {self.gamename} rejects a state row")
        self.data.reset()
        self.data.update_ram()

    # Sharing the emulator

    def wake(self, *, restore: bool = True) -> None:
        """Take over the emulator, if this game does not have it.

        If `restore` is true, the game's last state is then restored.
        """
        if self._asleep is None:
            return
        _send_to_sleep()
        # An emulator is freed with the last reference to it, which may be part of a cycle.
        try:
            self.em = stable_retro.RetroEmulator(self.rom)
        except RuntimeError:
            gc.collect()
            self.em = stable_retro.RetroEmulator(self.rom)
        self.addresses = Addresses(self.core)
        self.em.configure_data(self.data)
        self.em.step()
        kept, self._asleep = self._asleep, None
        PlannableRetro._awake = weakref.ref(self)
        if restore:
            self._put(kept)

    def sleep(self) -> None:
        """Save the state, and release the emulator."""
        self.image = self.screen()
        self._asleep = self.read_emulator().copy()
        del self.em

    @_alone
    def screen(self) -> NDArray[np.uint8]:
        """Return the current screen, ``(height, width, 3)``."""
        if self.image is None:
            self.image = self.get_screen(apply_rotation=True).copy()
        return self.image

    @_alone
    def console_memory(self) -> NDArray[np.uint8]:
        """Return a copy of the console's memory."""
        self.wake()
        ram: NDArray[np.uint8] = self.get_ram()
        return ram

    @_alone
    def variables(self) -> dict[str, Any]:
        """Return the game's variables, such as its score, by name."""
        self.wake()
        return dict(self.data.lookup_all())

    @_alone
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.wake()
        self.image = None
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, float(reward), terminated, truncated, info

    @_alone
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.wake(restore=False)
        self.image = None
        result: tuple[Any, dict[str, Any]] = super().reset(seed=seed, options=options)
        return result

    def render(self) -> NDArray[np.uint8]:
        return self.screen().copy()

    @_alone
    def close(self) -> None:
        if PlannableRetro._awake is not None and PlannableRetro._awake() is self:
            PlannableRetro._awake = None
        super().close()


def _send_to_sleep() -> None:
    awake = PlannableRetro._awake() if PlannableRetro._awake is not None else None
    PlannableRetro._awake = None
    if awake is not None and hasattr(awake, "em"):
        awake.sleep()


class Addresses:
    """Replaces pointers into one library with offsets, and offsets with pointers.

    Some emulator cores save pointers into their own library (tables of their sound chips), which
    is loaded at a different address in every process. In a row, such a pointer is replaced by its
    offset in the library.

    Parameters
    ----------
    library : str
        The file name of the core.

    Attributes
    ----------
    known : bool
        Whether this system reports where libraries are loaded.
    """

    def __init__(self, library: str) -> None:
        self._first, self._end = 0, 0
        self.known = _MAPS.exists()
        last = ""
        for line in _MAPS.read_text().splitlines() if self.known else ():
            fields = line.split(maxsplit=5)
            first, end = (int(part, 16) for part in fields[0].split("-"))
            path = fields[5] if len(fields) > 5 else ""
            # A library's zero-initialised memory is listed after it, without a name.
            if path.endswith("/" + library) or (not path and last and first == self._end):
                self._first = self._first or first
                self._end, last = end, library
            else:
                last = ""
        kinds = range(self._first >> 8 * _HIGH, (self._end - 1 >> 8 * _HIGH) + 1)
        self._high_bytes = sorted({kind & 0xFF for kind in kinds}) if self._end else []

    def strip(self, state: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return `state` with offsets instead of pointers, followed by the offsets' positions."""
        within = state[_HIGH : len(state) - (7 - _HIGH)]
        places = np.concatenate(
            [np.empty(0, np.int64), *(np.flatnonzero(within == high) for high in self._high_bytes)]
        )
        words = np.take(state, places[:, None] + _WORD).view("<u8")[:, 0]
        own = (words >= self._first) & (words < self._end)
        order = np.argsort(places[own])
        places, words = places[own][order], words[own][order]
        data = state.copy()
        data[places[:, None] + _WORD] = (words - np.uint64(self._first))[:, None].view(np.uint8)
        tail = places.astype("<u4").tobytes() + _COUNT.pack(len(places))
        return np.concatenate([data, np.frombuffer(tail, np.uint8)])

    def fill_in(self, stripped: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the state that was given to `strip`, with the pointers of this process."""
        (count,) = _COUNT.unpack(stripped[-_COUNT.size :].tobytes())
        start = len(stripped) - _COUNT.size - 4 * count
        places = np.frombuffer(stripped[start : -_COUNT.size].tobytes(), "<u4").astype(np.int64)
        words, data = places[:, None] + _WORD, stripped[:start].copy()
        data[words] = (data[words].view("<u8") + np.uint64(self._first)).view(np.uint8)
        return data


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

    def _file(self, name: str) -> Path:
        """Return the path of the file `name`, which defines the game's scenario or variables."""
        if name.endswith(".json"):
            return Path(name)
        inttype = self._kwargs.get("inttype", stable_retro.data.Integrations.STABLE)
        return Path(stable_retro.data.get_file_path(self._base.gamename, f"{name}.json", inttype))

    def fingerprint_fields(self) -> Mapping[str, Any]:
        """Return the game, digests of its files, the arguments and the version of stable-retro."""
        base, kwargs = self._base, dict(self._kwargs)
        files = {
            "rom": Path(base.rom),
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

    def view(self, payloads: Row) -> dict[str, NDArray[Any]]:
        """Return the game's variables (score, lives, ...) and its screen."""
        current = np.zeros(self.nbytes, np.uint8)
        self.read(current)
        found, screens, count = [], [], len(payloads)
        try:
            # Without payloads, the current state gives the names and shapes.
            for payload in payloads if count else current[None]:
                self.write(payload[: self.nbytes])
                found.append(self._base.variables())
                screens.append(self._base.screen())
        finally:
            self.write(current)
        variables = {name: np.array([row[name] for row in found])[:count] for name in found[0]}
        return {**variables, "screen": np.stack(screens)[:count]}

    def read(self, payload: Row) -> None:
        emulator, screen = self._base.read_emulator(), self._base.screen()
        if len(emulator) > self._capacity or screen.nbytes > self._screen_nbytes:
            raise StateCapacityError(
                f"{self._base.gamename} has grown to {len(emulator)} bytes for the emulator and "
                f"{screen.nbytes} for the screen, but rows have {self._capacity} and "
                f"{self._screen_nbytes}; make it with emulator_capacity={2 * len(emulator)}"
            )
        _HEAD.pack_into(payload.data, 0, len(emulator), *screen.shape[:2])
        _put(payload[_HEAD.size : self._screen_at], emulator)
        _put(payload[self._screen_at :], screen.reshape(-1))

    def write(self, payload: Row) -> None:
        """Restore the emulator, the screen, and the score from which the next reward is counted."""
        length, height, width = _HEAD.unpack_from(payload.data)
        end = self._screen_at + 3 * height * width
        screen = payload[self._screen_at : end].reshape(height, width, 3)
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
    rendered_obs_types = ("grayscale",)

    def __init__(self, name: str, *, emulator_capacity: int | None = None, **kwargs: Any) -> None:
        self._capacity = emulator_capacity
        self.base: PlannableRetro
        super().__init__(name, **kwargs)

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return the game, and give it the emulator of this process."""
        game = str(self.name)
        inttype = self.env_kwargs.get("inttype", stable_retro.data.Integrations.STABLE)
        actions = self.env_kwargs.get("use_restricted_actions", Actions.FILTERED)
        if not isinstance(actions, Actions):
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
        return self.base.console_memory()


class RetroEnv(FamilyEnv):
    """A game of stable-retro; see `RetroSimulator`."""

    simulator_class = RetroSimulator


def _put(place: Row, data: NDArray[np.uint8]) -> None:
    place[: len(data)] = data
    place[len(data) :] = 0
