"""What has happened on a `RayEnv` so far."""

from __future__ import annotations

from dataclasses import dataclass

from plangym_like.stats import Stats


@dataclass(slots=True)
class RayStats(Stats):
    """Counters: those of `Stats`, summed over the actors' own workers, and those of the cluster.

    Attributes
    ----------
    chunks : int
        Ranges of rows that were sent to actors.
    backups : int
        Chunks that were sent to a second actor because the first took far too long.
    actors, nodes : int
        Actors that stand now, and nodes of the cluster as of the last look.
    actors_lost, nodes_lost, nodes_joined : int
        How many went and came while the environment was in use.
    bytes_sent, bytes_received : int
        Arrays of chunks on their way to actors, and of results on their way back, as far as they
        went through Ray: actors on this machine share memory with this process. What all actors
        share of one batch counts once.
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
