"""`make_vec` is Gymnasium's SyncVectorEnv for each id that is installed, byte for byte."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv, VectorWrapper
from test_make_vec import HAS_BOX2D, MODES, compare

from plangym_like import make_vec

pytestmark = [
    pytest.mark.full,
    pytest.mark.usefixtures("always_in_processes"),
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__", "ignore:.*out of date"),
]
_NEEDS = {"mujoco": "mujoco", "box2d": "Box2D", "classic_control": "pygame", "toy_text": "pygame"}
_GAMES = ["Breakout", "MsPacman", "MontezumaRevenge", "Pong", "Qbert"]
_WORKERS: list[int | None] = [None, 1, 2, 3]
STEPS = 1000


class WithoutPlaces(VectorWrapper):
    """Leaves out what only our infos of Montezuma's Revenge have, and any other surplus shows."""

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = self.env.reset(**kwargs)
        return obs, _without_places(infos)

    def step(self, actions: Any) -> Any:
        *results, infos = self.env.step(actions)
        return *results, _without_places(infos)


def _without_places(infos: dict[str, Any]) -> dict[str, Any]:
    if "room" not in infos:
        return infos
    kept = {name: infos[name] for name in infos if name.strip("_") not in ("room", "x", "y")}
    if "final_info" in kept:
        kept["final_info"] = _without_places(kept["final_info"])
    return kept


def _ids() -> list[str]:
    """Return the ids of Gymnasium's own environments whose packages are installed."""
    found = []
    for spec in gymnasium.registry.values():
        entry = spec.entry_point if isinstance(spec.entry_point, str) else ""
        family = entry.removeprefix("gymnasium.envs.").partition(".")[0].partition(":")[0]
        needed = _NEEDS.get(family) if entry.startswith("gymnasium.envs.") else None
        if needed is None or importlib.util.find_spec(needed) is None:
            continue
        if family == "box2d" and not HAS_BOX2D:
            continue
        if spec.id != "Pusher-v4":  # for MuJoCo 2 only
            found.append(spec.id)
    return sorted(found)


def _games() -> list[tuple[str, int | None]]:
    """Return some games with each number of workers, all others with one of these in turn."""
    games = sorted(name for name in gymnasium.registry if name.startswith("ALE/"))
    some = [(game, count) for game in games if game[4:-3] in _GAMES for count in _WORKERS]
    others = [game for game in games if game[4:-3] not in _GAMES]
    return some + [(game, _WORKERS[number % 4]) for number, game in enumerate(others)]


@pytest.mark.parametrize("n_workers", _WORKERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", _ids())
def test_gymnasiums_own(name: str, mode: str, n_workers: int | None) -> None:
    _assert_equal(name, {}, mode, n_workers)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("game", "n_workers"), _games())
def test_games(game: str, mode: str, n_workers: int | None) -> None:
    options = {"repeat_action_probability": 0.0, "obs_type": "ram"}
    _assert_equal(game, options, mode, n_workers)


def _assert_equal(name: str, options: dict[str, Any], mode: str, n_workers: int | None) -> None:
    theirs = SyncVectorEnv([partial(gymnasium.make, name, **options)] * 4, autoreset_mode=mode)
    try:
        with make_vec(name, 4, n_workers, autoreset_mode=mode, **options) as ours:
            compare(theirs, WithoutPlaces(ours), steps=STEPS, mode=mode)
    finally:
        theirs.close()
