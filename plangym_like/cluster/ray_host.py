"""The actor's side of a cluster; its fork server starts while it imports the rest."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from plangym_like.cluster.surroundings import settle_in
from plangym_like.processes import fork_server

if TYPE_CHECKING:
    from plangym_like.cluster.chunk import Harvest, Order
    from plangym_like.cluster.near_line import Address
    from plangym_like.cluster.near_memory import Proof
    from plangym_like.cluster.node_env import Greeting, NodeEnv
    from plangym_like.states import Row

# What `RayHost` may do at the same time: step one chunk, send the results of another, close.
CONCURRENCY = 3


class RayHost:
    """Hosts a `NodeEnv`.

    Everything happens in one thread of its own, because some simulators belong to the thread that
    made them; meanwhile results of the chunk before are on their way.

    Parameters
    ----------
    surroundings : dict
        What `settle_in` takes.
    recipe : bytes
        What `write_recipe` wrote.
    """

    def __init__(self, surroundings: dict[str, Any], recipe: bytes) -> None:
        settle_in(**surroundings)
        fork_server.warm_up(["plangym_like.execution.lane"])
        self._recipe = recipe
        self._stepper = ThreadPoolExecutor(1, "plangym_like")
        self._hosted: NodeEnv | None = None

    def greet(self, proof: Proof) -> Greeting:
        """Make the environment and its processes."""
        return self._stepper.submit(self._greet, proof).result()

    def listen(self, address: Address) -> None:
        """Take orders from a `NearLine` as well, from now on; returns at once."""
        from plangym_like.cluster.near_line import answer

        run = partial(self.run, states=None)
        threading.Thread(target=answer, args=(address, run), daemon=True).start()

    def run(self, order: Order, states: Row | None) -> Harvest:
        """Step a chunk; what stepping it raises is part of the harvest."""
        assert self._hosted is not None
        return self._stepper.submit(self._hosted.run, order, states).result()

    def close(self) -> None:
        """Close the environment, once what is being stepped is done."""
        self._stepper.submit(self._close).result()

    def _greet(self, proof: Proof) -> Greeting:
        from plangym_like.cluster.node_env import NodeEnv

        self._hosted = NodeEnv(self._recipe)
        return self._hosted.greet(proof)

    def _close(self) -> None:
        if self._hosted is not None:
            self._hosted.close()
