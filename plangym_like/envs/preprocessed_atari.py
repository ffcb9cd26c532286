"""Faster steps of `AtariPreprocessing` and `FrameStackObservation`, with the same results.

In each step, `AtariPreprocessing` calls the game's ``step`` once for each frame. It ignores the
observations, and reads the last two screens directly from the emulator. Drawing screens that are
never read takes a quarter of a step's time (``benchmarks/vector.py mspacman_84``). Of the remaining
time outside the emulator, shrinking the screen takes half; see `ScreenResizer`.

`FrameStackObservation` stacks the frames of any space. For arrays, its generic code takes three
times as long as necessary.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    TimeLimit,
)

from plangym_like.envs.screen_resizer import ScreenResizer
from plangym_like.snapshots.chains import chain

# Results of `source_digest` with Gymnasium 1.4.0 and ale-py 0.12.1. With other sources, every
# screen is drawn.
_KNOWN = frozenset({"7099cf5c87bee485"})
# The attributes in which `OrderEnforcing` and `PassiveEnvChecker` record their first checks.
_CHECKS = ("_has_reset", "checked_step", "checked_data_reuse")


def is_screen_unread(env: Any) -> bool:
    """Return whether only an `AtariPreprocessing` receives the observations of the game.

    Return False if the source code of Gymnasium or ale-py is not a known version.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers.
    """
    return _find(env, between=(TimeLimit, OrderEnforcing)) is not None


def skip_unread_screens(env: Any) -> None:
    """Replace the ``step`` of an `AtariPreprocessing`, so that it draws only screens that it reads.

    If the next wrapper around it is a `FrameStackObservation`, the ``step`` of that wrapper is
    replaced too. The results, and the state of all wrappers after each step, stay the same.

    Parameters
    ----------
    env : gymnasium.Env
        The environment with all of its wrappers. Nothing changes if none of them is an
        `AtariPreprocessing`, if a wrapper between it and the game may read the screens, or if the
        game is not of ale-py's own class or has continuous actions.
    """
    found = _find(env, between=(OrderEnforcing, PassiveEnvChecker))
    if found is None:
        return
    base, inner = found.unwrapped, list(chain(found.env))
    if type(base).__module__ != "ale_py.env" or base.continuous:
        return
    if "step" in vars(found) or not _is_as_found(found, inner, base):
        return
    vars(found)["step"] = functools.partial(_step, found, inner, base, ScreenResizer())
    stack = next((link for link in chain(env) if getattr(link, "env", None) is found), None)
    if type(stack) is FrameStackObservation and "step" not in vars(stack):
        vars(stack)["step"] = functools.partial(_step_stack, stack)


def _find(env: Any, between: tuple[type, ...]) -> Any:
    """Return the `AtariPreprocessing` in `env` if each wrapper inside it has a type in `between`.

    Return ``None`` otherwise, or if the source code of Gymnasium or ale-py is not a known version.
    """
    found = next((link for link in chain(env) if type(link) is AtariPreprocessing), None)
    if found is None or source_digest() not in _KNOWN:
        return None
    return found if set(map(type, chain(found.env))) <= set(between) else None


@functools.cache
def source_digest() -> str:
    """Return a digest of the source code that this module relies on; "" if it is not available."""
    from ale_py.env import AtariEnv

    methods: tuple[Any, ...] = (
        AtariPreprocessing.reset,
        AtariPreprocessing.step,
        AtariPreprocessing._get_obs,
        FrameStackObservation.step,
        OrderEnforcing.step,
        PassiveEnvChecker.step,
        gymnasium.Wrapper.step,
        AtariEnv.step,
        AtariEnv._get_obs,
        AtariEnv._get_info,
    )
    try:
        text = "".join(inspect.getsource(method) for method in methods)
    except OSError:
        return ""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _step(env: Any, inner: list[Any], base: Any, resizer: ScreenResizer, action: Any) -> Any:
    """Step like `AtariPreprocessing.step`; `inner` are the wrappers between `env` and `base`."""
    frames = base._frameskip
    if not (type(frames) is int and _is_as_found(env, inner, base) and _are_checked(inner)):
        return AtariPreprocessing.step(env, action)
    ale = base.ale
    chosen, act = base._action_set[action], ale.act
    screen = ale.getScreenGrayscale if env.grayscale_obs else ale.getScreenRGB
    total, terminated, truncated = 0.0, False, False
    last = env.frame_skip - 1
    for index in range(env.frame_skip):
        reward = 0.0
        for _ in range(frames):
            reward += act(chosen, 1.0)
        total += reward
        terminated = env.game_over = ale.game_over(with_truncation=False)
        truncated = ale.game_truncated()
        if env.terminal_on_life_loss:
            lives = ale.lives()
            terminated = env.game_over = terminated or lives < env.lives
            env.lives = lives
        if terminated or truncated:
            break
        if index >= last - 1:
            screen(env.obs_buffer[last - index])
    return _observation(env, resizer), total, terminated, truncated, base._get_info()


def _observation(env: Any, resizer: ScreenResizer) -> Any:
    """Return what ``env._get_obs()`` returns."""
    screen, other = env.obs_buffer
    if env.frame_skip > 1:
        np.maximum(screen, other, out=screen)
    obs: Any = resizer.resize(screen, env.screen_size)
    if env.scale_obs:
        obs = np.asarray(obs, dtype=np.float32) / 255.0
    if env.grayscale_obs and env.grayscale_newaxis:
        obs = np.expand_dims(obs, axis=-1)
    return obs


def _step_stack(stack: Any, action: Any) -> Any:
    """Step like `FrameStackObservation.step`, if observations are single arrays."""
    frame, reward, terminated, truncated, info = stack.env.step(action)
    stack.obs_queue.append(frame)
    for place, each in enumerate(stack.obs_queue):
        stack.stacked_obs[place] = each
    return stack.stacked_obs.copy(), reward, terminated, truncated, info


def _is_as_found(env: Any, inner: list[Any], base: Any) -> bool:
    """Return whether `inner` are still the wrappers inside `env`, and no method was replaced."""
    link, usual = env, "_get_obs" not in vars(env)
    for part in (*inner, base):
        usual = usual and link.env is part and "step" not in vars(part)
        link = part
    return usual


def _are_checked(wrappers: list[Any]) -> bool:
    """Return whether all `wrappers` have already checked the first reset and the first step."""
    return all(vars(wrapper).get(name, True) for wrapper in wrappers for name in _CHECKS)
