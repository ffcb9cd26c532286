"""Residents in actors of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from plangym_like.batchers.engine.cluster_worker import Answer, ClusterWorker, Notice, Pulse
from plangym_like.batchers.engine.hosts import Call, Staff
from plangym_like.batchers.engine.inbox import Inbox
from plangym_like.batchers.engine.nests import Leaf, map_nest
from plangym_like.batchers.engine.parcels import Parcel, pack
from plangym_like.cluster import ray_session
from plangym_like.cluster.claims import claims
from plangym_like.cluster.surroundings import surroundings
from plangym_like.errors import InputError, WorkerDiedError
from plangym_like.processes.messages import dumps, dumps_by_value, loads
from plangym_like.processes.remote_errors import unpack_exception
from plangym_like.states import session_key

_GOODBYE_SECONDS = 1.0
# The thread of an actor that answers whatever its other one is doing.
_ASIDE = "aside"


class _Shared:
    """What jobs bring along to workers that have not seen it yet."""

    def __init__(self, content: Callable[[], Notice]) -> None:
        self.version = 0
        self._content = content
        self._ref: Any = None

    def renew(self) -> None:
        self.version += 1
        self._ref = None

    def ref(self) -> Any:
        """Return where it is in the object store; it is put there once for all workers."""
        if self._ref is None:
            self._ref = ray_session.load().put(self._content())
        return self._ref


class _ActorCall:
    """A job on its way, until its outcome is here."""

    def __init__(self) -> None:
        self._outcome: Answer | Callable[[], BaseException] | None = None

    @property
    def settled(self) -> bool:
        return self._outcome is not None

    def settle(self, outcome: Answer | Callable[[], BaseException]) -> None:
        self._outcome = outcome

    def __call__(self) -> Any:
        outcome = self._outcome
        assert outcome is not None
        # Errors are made anew each time: a kept one would hold on to its traceback's frames.
        if not isinstance(outcome, Answer):
            raise outcome()
        if outcome.error is not None:
            raise unpack_exception(outcome.error)
        return loads(outcome.result)


class ClusterHost:
    """See `Host`. Nothing is shared with workers that may be on other machines.

    What the owner shares goes through the object store, once for all, and to a worker with the next
    job after it has changed. What residents hand in comes back with the answer to the job. Ray is
    told never to start an actor or call a method a second time: the state would be another.

    Parameters
    ----------
    staff : Staff
    address, resources, runtime_env
        See `plangym_like.RayEnv`.
    """

    # A cluster may have to make room first.
    start_seconds = 120.0

    def __init__(
        self,
        staff: Staff,
        *,
        address: str | None,
        resources: dict[str, Any] | None,
        runtime_env: dict[str, Any] | None,
    ) -> None:
        if staff.num_workers == 0:
            raise InputError("on a cluster there is at least 1 worker, got 0")
        self._staff = staff
        self._actors: list[Any] = []
        self._made: list[_ActorCall] = []
        self._calls: dict[Any, tuple[int, _ActorCall]] = {}
        self._pulses: dict[Any, int] = {}
        self._shared: dict[str, _Shared] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._session: ray_session.RaySession | None = ray_session.join(address)
        try:
            ray = ray_session.load()
            cores = int(ray.cluster_resources().get("CPU", 0))
            wanted = max(1, cores) if staff.num_workers is None else staff.num_workers
            self.num_workers = min(wanted, staff.num_groups)
            # In a Ray that was started for this program there is nobody to reserve cores from.
            options = claims(0 if self._session.started else 1, resources, runtime_env)
            actor = ray.remote(concurrency_groups={_ASIDE: 1})(ClusterWorker)
            actor = actor.options(scheduling_strategy="SPREAD", **options)
            made_by = dumps_by_value(staff.make_resident)
            recipe = ray.put(dumps((surroundings(), session_key(), made_by)))
            for worker in range(self.num_workers):
                groups = staff.groups_of(worker, self.num_workers)
                self._actors.append(actor.remote(recipe, groups, staff.num_groups))
            self._seen: list[dict[str, int]] = [{} for _ in self._actors]
            self._pulse: list[Pulse | None] = [None] * self.num_workers
            self._felt = [float("-inf")] * self.num_workers
            self._made = [self._track(w, a.make.remote()) for w, a in enumerate(self._actors)]
            self._feel_pulses()
        except BaseException:
            self.close(0.0)
            raise

    def _track(self, worker: int, ref: Any) -> _ActorCall:
        call = _ActorCall()
        self._calls[ref] = worker, call
        return call

    @property
    def pids(self) -> list[int]:
        """See `Host`; of those that have been heard of."""
        return [pulse.pid for pulse in self._pulse if pulse is not None]

    def where(self, worker: int) -> str:
        """See `Host`."""
        pulse = self._pulse[worker]
        about = "not started by the cluster yet"
        if pulse is not None:
            about = f"pid {pulse.pid} on node {pulse.node}"
        return f"worker {self._staff.name}-{worker} ({about})"

    def stands(self, worker: int) -> bool:
        """See `Host`."""
        return self._made[worker].settled

    def share(self, name: str, shared: Any) -> Sequence[Call]:
        """See `Host`; workers take it over with their next job."""
        self._show(name, lambda: Notice(name, pack(shared.tensors)))
        return []

    def _show(self, name: str, content: Callable[[], Notice]) -> None:
        before = self._shared.get(name)
        self._shared[name] = _Shared(content)
        if before is not None:
            self._shared[name].version = before.version + 1

    def renew(self, name: str) -> None:
        """See `Host`."""
        self._shared[name].renew()

    def make_pool(
        self, name: str, layout: Any, count: int, group: int | None
    ) -> tuple[Inbox, Sequence[Call]]:
        """See `Host`; a worker has room for one piece where each of its jobs fills one."""
        lead = 1 if group is None else count
        there = map_nest(lambda leaf: Leaf((lead, *leaf.shape), leaf.dtype), layout)
        self._show(name, lambda: Notice(name, Parcel(there, []), is_pool=True))
        self._inboxes[name] = Inbox()
        return self._inboxes[name], []

    def call(self, group: int, method: str, args: tuple[Any, ...]) -> _ActorCall:
        """See `Host`."""
        worker = group % self.num_workers
        seen, news = self._seen[worker], []
        for name, shared in self._shared.items():
            if seen.get(name) != shared.version:
                seen[name] = shared.version
                news.append(shared.ref())
        ref = self._actors[worker].do.remote(group, method, dumps(args), *news)
        return self._track(worker, ref)

    def listen(self, seconds: float, wanted: Call | None) -> None:
        """See `Host`."""
        self._feel_pulses()
        ray, refs = ray_session.load(), [*self._calls, *self._pulses]
        if not refs:
            time.sleep(seconds)
            return
        ready, _ = ray.wait(refs, num_returns=1, timeout=max(0.0, seconds))
        if ready and len(refs) > 1:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            if ref in self._pulses:
                worker = self._pulses.pop(ref)
                # Of an actor that is gone, its jobs tell.
                with suppress(ray.exceptions.RayError):
                    self._pulse[worker] = ray.get(ref)
            else:
                worker, call = self._calls[ref]
                if not call.settled:
                    self._take_in(ref, worker, call)
                # Last, so that no interrupt can come between: a job would be waited for in vain.
                del self._calls[ref]

    def _take_in(self, ref: Any, worker: int, call: _ActorCall) -> None:
        ray = ray_session.load()
        try:
            answer: Answer = ray.get(ref)
        except ray.exceptions.RayError as error:
            call.settle(self._death(worker, error))
        else:
            for name, index, parcel in answer.pieces:
                self._inboxes[name].put(index, parcel)
            answer.pieces.clear()
            self._pulse[worker] = answer.pulse
            call.settle(answer)

    def _death(self, worker: int, error: Exception) -> Callable[[], BaseException]:
        pulse = self._pulse[worker]
        told = " ".join(str(error).split())
        message = f"{self.where(worker)} is gone, and what it had in hand with it: {told}"
        return lambda: WorkerDiedError(message, None if pulse is None else pulse.pid)

    def _feel_pulses(self) -> None:
        """Ask who is there and how far it is, a few times within the time to be patient for."""
        now = time.monotonic()
        for worker, actor in enumerate(self._actors):
            if now - self._felt[worker] < self._staff.timeout / 4:
                continue
            if worker not in self._pulses.values():
                self._felt[worker] = now
                ref = actor.pulse.options(concurrency_group=_ASIDE).remote()
                self._pulses[ref] = worker

    def beats(self, worker: int) -> int:
        """See `Host`."""
        pulse = self._pulse[worker]
        return -1 if pulse is None else pulse.beats

    def close(self, timeout: float) -> None:
        """See `Host`; workers close what they host, and who does not is killed."""
        session, self._session = self._session, None
        if session is None:
            return
        ray, actors, self._actors = ray_session.load(), self._actors, []
        if ray.is_initialized():
            for actor in actors:
                actor.stop.options(concurrency_group=_ASIDE).remote()
            stand = [actor for actor, made in zip(actors, self._made, strict=False) if made.settled]
            goodbyes = [actor.close.remote() for actor in stand]
            if goodbyes:
                seconds = min(timeout, _GOODBYE_SECONDS)
                ray.wait(goodbyes, num_returns=len(goodbyes), timeout=seconds)
            for actor in actors:
                ray.kill(actor, no_restart=True)
        for inbox in self._inboxes.values():
            inbox.close()
        self._calls.clear()
        self._pulses.clear()
        session.leave()
