"""The layer's environments of games."""

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

import plangym_like.compat.plangym as plangym
from plangym_like.errors import InputError

pytest.importorskip("ale_py", reason="ale-py is not installed")

from plangym_like.compat.plangym.videogames import AtariEnv, ale_to_ram
from plangym_like.compat.plangym.videogames.montezuma import (
    CustomMontezuma,
    MontezumaEnv,
    MontezumaPosLevel,
)


def test_atari() -> None:
    env = plangym.make("ALE/MsPacman-v5", obs_type="ram", mode=1, difficulty=0)
    assert isinstance(env, AtariEnv)
    assert (env.frameskip, env.mode, env.difficulty, env.n_actions) == (5, 1, 0, 9)
    assert (env.repeat_action_probability, env.full_action_space) == (0.0, False)
    state, obs, _ = env.reset()
    assert obs.shape == env.obs_shape == (128,)
    assert np.array_equal(env.get_ram(), ale_to_ram(env.ale))
    assert env.get_image().shape == (210, 160, 3)
    *_, info = env.step(0, state, dt=2)
    assert info["n_step"] == 10 and info["dt"] == 2
    clone = env.clone(full_action_space=True)
    assert (clone.mode, clone.obs_type, clone.n_actions) == (1, "ram", 18)
    assert plangym.make("ALE/Galaxian-v5").mode == 0
    with pytest.raises(InputError, match="array_state"):
        AtariEnv("ALE/Pong-v5", array_state=False)


def test_lives() -> None:
    env = plangym.make("ALE/MsPacman-v5", obs_type="ram", autoreset=False)
    state, *_ = env.reset()
    infos, states = [], [state]
    for _ in range(60):
        state, _, _, terminal, _, info = env.step(3, state, dt=8)
        states.append(state)
        infos.append(info)
        if info["lost_life"]:
            break
    assert info["lost_life"] and (infos[-2]["lifes"], info["lifes"]) == (3, 2) and not terminal
    batch = env.step_batch([3] * len(infos), states[:-1], dt=8)[-1]
    assert batch == infos
    episodic = plangym.make("ALE/MsPacman-v5", obs_type="ram", episodic_life=True, autoreset=False)
    episodic.reset()
    while not terminal:
        *_, terminal, _, info = episodic.step(3, dt=8)
    assert info["lost_life"] and info["lifes"] == 2


def test_montezuma() -> None:
    env = plangym.make("PlanMontezuma-v0", obs_type="coords", autoreset=False, frameskip=4)
    assert isinstance(env, MontezumaEnv)
    state, obs, info = env.reset()
    x, y, room, objects = obs
    assert (room, objects) == (1, 0) and (info["room"], info["lives"]) == (1, 6)
    # The player begins in the middle of the first room, and walks to the right.
    after, obs, _, terminal, _, _ = env.step(3, state, dt=3)
    assert obs[0] > x and abs(x - 77) < 8 and not terminal
    batch = env.step_batch([3, 4], [state, after], dt=3)
    assert np.array_equal(batch[0][0], after) and np.array_equal(batch[1][0], obs)
    # Walking on, the player falls and dies.
    while not terminal:
        state, _, _, terminal, _, info = env.step(3, state)
    assert env.gym_env.cur_lives > info["lives"] or env.get_ram()[55]
    for kind, shape in (("rgb", (210, 160, 3)), ("grayscale", (210, 160)), ("ram", (128,))):
        other = MontezumaEnv(obs_type=kind, score_objects=True)
        assert other.reset()[1].shape == other.obs_shape == shape
        assert other.clone()._options == {"score_objects": True}


def test_the_player_of_montezuma() -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    game = CustomMontezuma(score_objects=True, objects_from_pixels=True)
    obs, _ = game.reset()
    for _ in range(20):
        obs, *_ = game.step(0)
    face = game.get_face_pixels(obs)
    assert game.pos_from_obs(face, obs) == game.pos
    assert game.pos_from_obs(set(), obs) == game.pos
    assert game.pos.score == 0 == game.get_objects_from_pixels(obs, 1, ())
    shelf = np.zeros_like(obs)
    shelf[26:31, 60:68] = 255  # as large as a key
    game.only_keys = True
    assert game.get_objects_from_pixels(shelf, 4, ()) == 0b10
    game.objects_remember_rooms = True
    assert game.get_objects_from_pixels(shelf, 4, ()) == ((40, 4),)
    assert game.get_objects_from_pixels(shelf, 4, ((40, 2),)) == ((40, 2),)
    assert [game.get_room_xy(room) for room in (0, 15, 24, -1)] == [(3, 0), (0, 3), None, None]
    place = MontezumaPosLevel(1, 100, 2, 30, 16)
    assert place.tuple == (1, 100, 2, 30, 16) and place != (1, 100, 2, 30, 16)
    assert pickle.loads(pickle.dumps(place)) == place and len({place, place}) == 1
    assert repr(place) == "Level=1 Room=2 Objects=100 x=30 y=16"


def test_retro() -> None:
    pytest.importorskip("stable_retro", reason="stable-retro is not installed")
    from plangym_like.compat.plangym.videogames import ActionDiscretizer, RetroEnv

    actions = {"actions": [["LEFT"], ["RIGHT"], ["B", "LEFT"]]}
    env: Any = plangym.make(
        "Airstriker-Genesis", obs_type="ram", wrappers=[(ActionDiscretizer, actions)]
    )
    try:
        assert isinstance(env, RetroEnv) and (env.n_actions, env.frameskip) == (3, 5)
        state, obs, _ = env.reset()
        assert np.array_equal(obs, env.get_ram()) and len(env.em.get_state()) > 1000
        assert env.gamename.startswith("Airstriker")
        found = env.step_batch([0, 1], [state] * 2)
        assert np.array_equal(env.step(1, state)[0], found[0][1])
        assert (found[-1][0]["lifes"], found[-1][0]["lost_life"]) == (3, False)
        assert env.get_image().shape == (224, 320, 3)
    finally:
        env.close()
    env = RetroEnv("Airstriker-Genesis", episodic_life=True, autoreset=False, frameskip=60)
    try:
        env.reset()
        terminal = False
        for _ in range(200):
            *_, terminal, _, info = env.step(np.zeros(12, np.int8))
            if terminal:
                break
        assert terminal and info["lost_life"] and info["lifes"] == 2
        assert isinstance(env.gym_env, gymnasium.Wrapper)
    finally:
        env.close()
