"""stable-retro's environment, changed: games share one emulator, and states are reproducible.

A process can have only one emulator. The game in use has the emulator; all other games keep their
states as bytes.
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
        self.core = pathlib.Path(
            stable_retro.get_core_path(stable_retro.get_romfile_system(self.rom))
        ).name
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
        try:
            text = self.addresses.fill_in(data).tobytes()
        except ValueError as error:
            raise StateFormatError(f"a state row is damaged: {error}") from error
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

    def screen(self) -> NDArray[np.uint8]:
        """Return the current screen, ``(height, width, 3)``."""
        if self.image is None:
            self.image = self.get_screen(apply_rotation=True).copy()
        return self.image

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.wake()
        self.image = None
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, float(reward), terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.wake(restore=False)
        self.image = None
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
