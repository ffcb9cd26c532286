"""Addresses of the player's position in a game's memory, for planners that remember places."""

from __future__ import annotations

from collections.abc import Mapping

# Game -> info key -> address in RAM, found by walking through the game.
PLACES: Mapping[str, Mapping[str, int]] = {
    # Rooms are numbered as on the game's map, from 1; x grows to the right and y upward, in pixels.
    "montezuma_revenge": {"room": 3, "x": 42, "y": 43},
}
