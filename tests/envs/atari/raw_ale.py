"""ale-py's own emulator, without this package."""

from __future__ import annotations

from ale_py import ALEInterface, LoggerMode, roms


def emulator(game: str) -> ALEInterface:
    """Return an emulator in which `game` has been reset."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    return ale
