"""stable-retro's environment for planning: games share one emulator, and states are reproducible.

A process can have one emulator. The other games keep their state as bytes; a game that is used
takes the emulator over.
"""

from __future__ import annotations

import gc
import pathlib
import weakref
from typing import Any

import numpy as np
import stable_retro
from numpy.typing import NDArray
from stable_retro.enums import Actions, Observations, State

from plangym_like.envs.retro_addresses import Addresses
from plangym_like.errors import StateFormatError

_FILLINGS = (0xAA, 0x55)
_FRAMES = 8


class PlannableRetro(stable_retro.RetroEnv):  # type: ignore[misc]
    """A game whose emulator can be taken away and given back.

    Parameters
    ----------
    game : str
        As stable-retro lists them, ``"Airstriker-Genesis-v0"``.
    ram : bool
        Observe the console's memory instead of the screen.
    kwargs
        stable-retro's own: ``state``, ``scenario``, ``info``, ``use_restricted_actions``,
        ``players``, ``inttype``.
    """

    em: Any
    initial_state: Any
    # The game that has the emulator of this process.
    _awake: weakref.ref[PlannableRetro] | None = None

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
        self.picture: NDArray[np.uint8] | None = None
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
            # Without a beginning, stable-retro's reset would go on from wherever the game is.
            self.initial_state = self.em.get_state()
        self.rom = stable_retro.data.get_original_romfile_path(game, inttype)
        self.core = pathlib.Path(
            stable_retro.get_core_path(stable_retro.get_romfile_system(self.rom))
        ).name
        self.addresses = Addresses(self.core)
        self._dirt = slice(0, 0), np.empty(0, np.int64)
        super().reset()
        self._find_dirt()

    # The state of the emulator

    def _find_dirt(self) -> None:
        """Find out which bytes of a state the emulator never writes.

        They hold what was in this process's memory before. So the memory is filled with one value
        and then with another before a state is read: bytes that follow are not the emulator's.
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

    def read_emulator(self) -> NDArray[np.uint8]:
        """Return the emulator's state, the same bytes in every process; its length may vary."""
        if self._asleep is not None:
            return self._asleep
        data = np.frombuffer(self.em.get_state(), np.uint8)
        tail, gaps = self._dirt
        if len(data) == tail.stop:
            data = data[: tail.start].copy()
            data[gaps] = 0
        return self.addresses.strip(data)

    def write_emulator(self, data: NDArray[np.uint8], picture: NDArray[np.uint8]) -> None:
        """Make `data` the emulator's state and `picture` its screen.

        The next reward counts from here.
        """
        self.wake(restore=False)
        self._put(data)
        self.picture = picture
        if self._obs_type == Observations.RAM:
            self.ram = self.get_ram()
        else:
            self.img = picture

    def _put(self, data: NDArray[np.uint8]) -> None:
        tail, _ = self._dirt
        try:
            text = self.addresses.fill_in(data).tobytes()
        except ValueError as error:
            raise StateFormatError(f"a state row is damaged: it announces {error}") from error
        if len(text) == tail.start:
            text += bytes(tail.stop - tail.start)
        if not self.em.set_state(text):
            raise StateFormatError(f"the emulator of {self.gamename} refuses a state row")
        self.data.reset()
        self.data.update_ram()

    # Turns

    def wake(self, *, restore: bool = True) -> None:
        """Take the emulator, in the state in which it was left, unless that is not wanted."""
        if self._asleep is None:
            return
        _send_to_sleep()
        # An emulator is freed with the last reference to it, which may be in a cycle.
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
        """Give the emulator back, and keep the state."""
        self.picture = self.screen()
        self._asleep = self.read_emulator().copy()
        del self.em

    def screen(self) -> NDArray[np.uint8]:
        """Return the present screen, ``(height, width, 3)``."""
        if self.picture is None:
            self.picture = self.get_screen(apply_rotation=True).copy()
        return self.picture

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.wake()
        self.picture = None
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, float(reward), terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.wake(restore=False)
        self.picture = None
        result: tuple[Any, dict[str, Any]] = super().reset(seed=seed, options=options)
        return result

    def render(self) -> NDArray[np.uint8]:
        return self.screen().copy()

    def close(self) -> None:
        if PlannableRetro._awake is not None and PlannableRetro._awake() is self:
            PlannableRetro._awake = None
        super().close()


def _send_to_sleep() -> None:
    awake = PlannableRetro._awake() if PlannableRetro._awake is not None else None
    PlannableRetro._awake = None
    if awake is not None and hasattr(awake, "em"):
        awake.sleep()
