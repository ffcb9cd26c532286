"""`RayStats`: the counters of a `RayEnv`."""

from __future__ import annotations

from dataclasses import dataclass

from plangym_like.stats import Stats


@dataclass(slots=True)
class RayStats(Stats):
    """The counters of `Stats` for the workers of all machines, and counters of the cluster.

    Attributes
    ----------
    chunks : int
        Ranges of rows that were sent to actors.
    backups : int
        Chunks that took far too long, so that their rows were requeued.
    actors, nodes : int
        Actors that are ready now, and nodes of the cluster at the last query. Workers on this
        machine need no actor.
    actors_lost, nodes_lost, nodes_joined : int
        Actors and nodes that were lost, and nodes that joined, since the environment was made.
    bytes_sent, bytes_received : int
        The sizes of the arrays sent to actors, and of the results received. States that all chunks
        of a batch share count once.
    """

    chunks: int = 0
    backups: int = 0
    actors: int = 0
    nodes: int = 0
    actors_lost: int = 0
    nodes_lost: int = 0
    nodes_joined: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
