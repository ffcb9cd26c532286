"""Rollouts: an endless iterator of time-major fragments, for actor-critic learners.

``same.rollout``     environments and actor in this process
``single.rollout``   one worker, which collects the next fragment while the caller learns
``multi.rollout``    many workers and a pool of buffers

Each returns an iterator of `Fragment` that is also a context manager. Actors are subclasses of
`BaseActorModule`; `evaluate` plays episodes with an actor.
"""

from plangym_like.batchers.randomness import multinomial
from plangym_like.batchers.rollout.actor import BaseActorModule, evaluate
from plangym_like.batchers.rollout.fragment import Final, Fragment, Inputs, State
from plangym_like.batchers.workers.group import Workers

__all__ = [
    "BaseActorModule",
    "Final",
    "Fragment",
    "Inputs",
    "State",
    "Workers",
    "evaluate",
    "multinomial",
]
