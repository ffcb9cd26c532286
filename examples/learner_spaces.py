"""Check that the learners in this folder support an environment's spaces."""

from __future__ import annotations

import argparse

import gymnasium
from gymnasium.spaces import Box, Discrete


def sizes_of(parser: argparse.ArgumentParser, env_id: str) -> tuple[int, int]:
    """Return the size of the observations and the number of actions of an environment.

    If the environment cannot be made, its observations are not vectors, or its actions are not
    discrete, end the program with an error message.
    """
    try:
        with gymnasium.make(env_id) as env:
            observations, actions = env.observation_space, env.action_space
    except (gymnasium.error.Error, ImportError) as error:
        parser.error(str(error))
    if not (isinstance(observations, Box) and len(observations.shape) == 1):
        parser.error(f"observations must be vectors; those of {env_id} are in {observations}")
    if not isinstance(actions, Discrete):
        parser.error(f"actions must be discrete; those of {env_id} are in {actions}")
    return observations.shape[0], int(actions.n)
