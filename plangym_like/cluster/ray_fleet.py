"""`RayFleet`: the actors of one environment all over a cluster, and the nodes that they are on."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from plangym_like.batches import Layout
from plangym_like.cluster.chunk import Chunk, Harvest
from plangym_like.cluster.claims import check_resources
from plangym_like.cluster.near_memory import proof_of
from plangym_like.cluster.node_env import Greeting
from plangym_like.cluster.places import Place, share
from plangym_like.cluster.ray_lane import RayLane, actor_options
from plangym_like.cluster.ray_session import load
from plangym_like.cluster.ray_stats import RayStats
from plangym_like.errors import InputError, StateMismatchError, WorkerStartError
from plangym_like.execution.placement import signature
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.processes.shared_memory import SharedBlock

logger = logging.getLogger("plangym_like")

_SURVEY_SECONDS = 1.0
_GOODBYE_SECONDS = 1.0
# For how long to listen to nothing but lines while something is to come from Ray.
_ELSEWHERE_SECONDS = 2e-3
_FAILED_STARTS = 3
# Without any actor, and nothing stepped here: how long to wait for the cluster to give a place.
_PATIENCE_SECONDS = 120.0
# For how long a node is left alone where actors cannot be started.
_SHUN_SECONDS = 60.0

# A node and -1, or nothing and a bundle.
_Key = tuple[str, int]


class RayFleet:
    """Keeps as many actors as nodes have room for, and replaces those that are lost.

    Parameters
    ----------
    recipe : callable
        ``recipe(lanes)`` returns what a `NodeEnv` with so many processes needs.
    layout : Layout
        What the batches of every one of them must look like.
    private : bool
        Whether the cluster is one that was started for this program: then nothing is reserved, and
        one machine takes all lanes, however many cores it has.
    n_workers : int or None
        Lanes on all actors together; ``None``: every core of the cluster.
    cores_per_actor, resources, placement, runtime_env
        As in `RayEnv`.
    """

    def __init__(
        self,
        recipe: Callable[[int], bytes],
        layout: Layout,
        *,
        private: bool,
        n_workers: int | None,
        cores_per_actor: int | None,
        resources: dict[str, Any] | None,
        placement: Any,
        runtime_env: dict[str, Any] | None,
    ) -> None:
        self.stats = RayStats()
        self.lanes: list[RayLane] = []
        self._recipe = recipe
        self._layout = layout
        self._private = private
        self._n_workers = n_workers
        self._cores_per_actor = cores_per_actor
        self._resources = resources
        self._spread = placement != "pack"
        self._bundles = None if isinstance(placement, str) else placement
        self._runtime_env = runtime_env
        self._nodes: dict[str, int] = {}
        self._failed_starts: dict[_Key, int] = {}
        self._shunned: dict[_Key, float] = {}
        self._ever_ready = False
        self._looked_at = float("-inf")
        self._hoping_since: float | None = None
        self._closed = False
        self._witness = SharedBlock(1)
        self._proof = proof_of(self._witness)
        self._here: str = load().get_runtime_context().get_node_id()
        self.survey()

    # The cluster

    def survey(self, *, now: bool = False) -> None:
        """Look who is in the cluster, at most once a second, and give new nodes their actors."""
        moment = time.monotonic()
        if not now and moment - self._looked_at < _SURVEY_SECONDS:
            return
        first = self._looked_at == float("-inf")
        self._looked_at = moment
        alive = [node for node in load().nodes() if node["Alive"]]
        # This machine comes first: its actors share memory with this process.
        alive.sort(key=lambda node: node["NodeID"] != self._here)
        found = {node["NodeID"]: self._cores_of(node["Resources"]) for node in alive}
        lost, joined = self._nodes.keys() - found.keys(), found.keys() - self._nodes.keys()
        self._nodes = found
        self.stats.nodes = len(found)
        if not first:
            self.stats.nodes_lost += len(lost)
            self.stats.nodes_joined += len(joined)
            for node in lost:
                logger.warning("node %s of the Ray cluster is lost; its rows run elsewhere", node)
        for lane in [lane for lane in self.lanes if lane.place.node in lost and not lane.tasks]:
            self.lose(lane, None)
        self._fill()

    def _cores_of(self, resources: dict[str, float]) -> int:
        for name, amount in (self._resources or {}).items():
            held = resources.get({"num_gpus": "GPU", "num_cpus": "CPU"}.get(name, name), 0.0)
            if held < amount:
                return 0
        if self._private and self._n_workers is not None:
            return self._n_workers
        return int(resources.get("CPU", 0.0))

    def _fill(self) -> None:
        """Start actors where there is room for more."""
        if self._closed:
            return
        now = time.monotonic()
        self._shunned = {key: until for key, until in self._shunned.items() if until > now}
        taken = [lane.place for lane in self.lanes]
        if self._bundles is not None:
            specs = self._bundles.bundle_specs
            places = [Place("", int(spec.get("CPU", 1)), at) for at, spec in enumerate(specs)]
            places = [place for place in places if place not in taken]
        else:
            free = dict(self._nodes)
            for place in taken:
                free[place.node] = free.get(place.node, 0) - place.lanes
            for node, _ in self._shunned:
                free[node] = 0
            wanted = self._n_workers
            if wanted is not None:
                wanted = max(0, wanted - sum(place.lanes for place in taken))
            places = share(free, wanted, cores_per_actor=self._cores_per_actor, spread=self._spread)
        for place in places:
            if (place.node, place.bundle) not in self._shunned:
                self.lanes.append(self._start(place))

    def _start(self, place: Place) -> RayLane:
        options = actor_options(
            place,
            reserve=not self._private,
            resources=self._resources,
            placement_group=self._bundles,
            runtime_env=self._runtime_env,
        )
        return RayLane(place, self._recipe(place.lanes), options, self._proof)

    @property
    def stands(self) -> bool:
        """Whether any actor does."""
        return any(lane.ready for lane in self.lanes)

    @property
    def all_near(self) -> bool:
        """Whether every actor that stands shares memory with this process."""
        return all(lane.near for lane in self.lanes if lane.ready)

    def is_alive(self, node: str) -> bool:
        """Return whether `node` was in the cluster at the last look."""
        return not node or node in self._nodes

    # Actors

    def wait(self, seconds: float) -> list[tuple[RayLane, Any]]:
        """Return whatever actors have answered, waiting up to `seconds` for the first."""
        if lines := {line: lane for lane in self.lanes if (line := lane.line) >= 0}:
            if heard := self._listen(lines, seconds):
                return heard
            seconds = 0.0
        owners = {ref: lane for lane in self.lanes for ref in lane.refs}
        if not owners:
            if seconds:
                time.sleep(min(seconds, 0.05))
            return []
        ray, refs = load(), list(owners)
        ready, _ = ray.wait(refs, num_returns=1, timeout=seconds)
        if ready and len(refs) > 1:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        return [(owners[ref], ref) for ref in ready]

    def _listen(self, lines: dict[int, RayLane], seconds: float) -> list[tuple[RayLane, Any]]:
        """Return what actors have answered on their lines, as `wait` does."""
        poller = select.poll()
        for descriptor in lines:
            poller.register(descriptor, select.POLLIN)
        if any(lane.refs for lane in self.lanes):
            seconds = min(seconds, _ELSEWHERE_SECONDS)
        ready = [lines[descriptor] for descriptor, _ in poller.poll(1000 * seconds)]
        return [(lane, number) for lane in ready for number in lane.listen()]

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until every actor that has been asked for stands.

        Raises
        ------
        TimeoutError
            They do not after `timeout` seconds.
        WorkerStartError
            The cluster has had no place for any of them for minutes.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self.lanes or any(not lane.ready for lane in self.lanes):
            if until is not None and time.monotonic() > until:
                waiting = sum(not lane.ready for lane in self.lanes)
                raise TimeoutError(f"{waiting} actors do not stand after {timeout} seconds")
            self.survey()
            self.welcome(0.05)
            self.ensure_hope()

    def welcome(self, seconds: float = 0.0) -> None:
        """Let actors in that have come to stand, waiting up to `seconds` for the first."""
        for lane, ref in self.wait(seconds):
            if ref == lane.greeting:
                self.arrive(lane)

    def arrive(self, lane: RayLane) -> None:
        """Hear whether the environment of a new actor stands.

        Raises
        ------
        WorkerStartError
            No actor at all can be started.
        Exception
            What making the environment there raised, if none stands anywhere yet.
        """
        ray = load()
        if lane not in self.lanes or lane.greeting is None:
            return
        try:
            greeting: Greeting = ray.get(lane.greeting)
        except ray.exceptions.RayError as error:
            self._mourn_start(lane, error)
            return
        key = lane.place.node, lane.place.bundle
        failure = self._failure(greeting)
        if failure is None:
            lane.greeting, lane.pid = None, greeting.pid
            # Machines of one name, as those that a test pretends to have, are still apart.
            if greeting.near and lane.place.node in ("", self._here):
                lane.come_near()
            self._ever_ready = True
            self._failed_starts.pop(key, None)
            self.stats.actors = sum(lane.ready for lane in self.lanes)
            return
        self._shunned[key] = time.monotonic() + _SHUN_SECONDS
        self._remove(lane)
        lane.kill()
        if not self._ever_ready:
            raise failure
        logger.warning("node %s cannot make the environment: %s", lane.place.node, failure)

    def _failure(self, greeting: Greeting) -> BaseException | None:
        if greeting.error is not None:
            return unpack_exception(greeting.error)
        if greeting.signature == signature(self._layout):
            return None
        expected, got = self._layout.format.meaning, greeting.meaning
        return StateMismatchError(
            "the environment on another machine is not the caller's; its packages may be of other "
            f"versions: expected {expected}, got {got}",
            expected,
            got,
        )

    def _mourn_start(self, lane: RayLane, error: Exception) -> None:
        key = lane.place.node, lane.place.bundle
        failed = self._failed_starts[key] = self._failed_starts.get(key, 0) + 1
        self._remove(lane)
        if failed >= _FAILED_STARTS:
            self._shunned[key] = time.monotonic() + _SHUN_SECONDS
            self._failed_starts[key] = 0
        # Where the node lives and is not shunned, this starts the next one.
        self.survey(now=True)
        if not self.is_alive(lane.place.node):
            return
        logger.warning(
            "an actor died on node %s before its environment stood: %s", lane.place.node, error
        )
        if not self.lanes and not self._ever_ready:
            raise WorkerStartError(
                f"actors died {failed} times in a row before their environment stood, the last "
                f"time because: {error}"
            ) from error

    def _remove(self, lane: RayLane) -> None:
        if lane in self.lanes:
            self.lanes.remove(lane)
        self.stats.actors = sum(lane.ready for lane in self.lanes)

    def lose(self, lane: RayLane, error: Exception | None) -> list[tuple[Any, Chunk]]:
        """Replace an actor that is gone, and return the chunks that it still had."""
        if lane not in self.lanes:
            return []
        orphans = list(lane.tasks.values())
        lane.tasks.clear()
        for _, chunk in orphans:
            chunk.copies -= 1
        self.stats.actors_lost += lane.ready
        self._remove(lane)
        lane.kill()
        left = len(self.lanes)
        if error is not None:
            self.survey(now=True)
            told = str(error).strip().partition("\n")[0]
            logger.warning(
                "an actor on node %s is lost, its rows run elsewhere: %s", lane.place.node, told
            )
        self._fill()
        self.stats.restarts += max(0, len(self.lanes) - left)
        return orphans

    def note(self, lane: RayLane, chunk: Chunk, harvest: Harvest) -> None:
        """Take down what an actor says of itself and its workers."""
        if harvest.error is None:
            lane.note(len(chunk), harvest.seconds)
        for name, count in harvest.counts.items():
            setattr(self.stats, name, getattr(self.stats, name) + count)
        self.stats.note_phases(harvest.phases)
        if deaths := harvest.counts.get("deaths"):
            logger.warning(
                "%d workers of the actor on node %s died and were replaced",
                deaths,
                lane.place.node,
            )

    def ensure_hope(self) -> None:
        """Raise `WorkerStartError` when no actor has been to be had for a long time."""
        if any(lane.ready for lane in self.lanes):
            self._hoping_since = None
            return
        now = time.monotonic()
        if self._hoping_since is None:
            self._hoping_since = now
        if now - self._hoping_since > _PATIENCE_SECONDS:
            self._hoping_since = None
            raise WorkerStartError(
                f"no actor could be started within {_PATIENCE_SECONDS:.0f} seconds: the cluster's "
                f"{len(self._nodes)} nodes may have no cores left (see `ray status`), or lack what "
                f"resources={self._resources} asks for"
            )

    # The end

    def close(self) -> None:
        """End all actors, within seconds."""
        self._closed = True
        self._witness.close()
        ray = load()
        lanes, self.lanes = self.lanes, []
        if not ray.is_initialized():
            return
        idle = [lane for lane in lanes if lane.ready and not lane.tasks]
        if goodbyes := [lane.say_goodbye() for lane in idle]:
            ray.wait(goodbyes, num_returns=len(goodbyes), timeout=_GOODBYE_SECONDS)
        for lane in lanes:
            lane.kill()


def check_options(n_workers: Any, cores_per_actor: Any, resources: Any, placement: Any) -> None:
    """Raise `InputError` for options of `RayEnv` that cannot be meant."""
    for name, value in (("n_workers", n_workers), ("cores_per_actor", cores_per_actor)):
        if value is None:
            continue
        if not isinstance(value, (int, np.integer)) or value < 1:
            raise InputError(f"{name} is a whole number of at least 1, got {value!r}")
    check_resources(resources)
    if isinstance(placement, str) and placement not in ("spread", "pack"):
        raise InputError(f"placement is 'spread', 'pack' or a placement group, got {placement!r}")
