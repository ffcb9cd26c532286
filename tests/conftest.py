"""One suite over every backend: environments made once for each module and backend."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import plangym_like
from plangym_like.audit import auditor
from plangym_like.audit.auditor import Auditor

# What runs in the background is often started with interrupts ignored, and so are its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "parallel": {"n_workers": 2},
    "isolated": {"n_workers": 2, "isolate": True},
    # An actor claims no cores, so that many environments share the cluster. To start one takes most
    # of a second, so only what is kept for a whole module has two, on two nodes.
    "ray": {"ray": True, "n_workers": 1, "resources": {"num_cpus": 0}},
}
STORE_NBYTES = 100 << 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have what runs on the cluster run last, and where tests run side by side, in one process.

    The other tests of a file share their environments, so a file stays together, too.
    """
    items.sort(key=_is_on_cluster)
    for item in items:
        group = "cluster" if _is_on_cluster(item) else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))


def _is_on_cluster(item: pytest.Item) -> bool:
    backend = item.callspec.params.get("backend") if hasattr(item, "callspec") else None
    return backend == "ray" or "cluster" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each, this process connected to the first.

    An actor on the first shares memory with this process; for the second, the same machine is
    another one.
    """
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    # Ray takes 15 seconds to notice that a machine is gone; this many milliseconds times three
    # here.
    noticing = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300}
    head = {
        "num_cpus": 1,
        "object_store_memory": STORE_NBYTES,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,  # the autoscaler's
        "_system_config": noticing | {"health_check_failure_threshold": 3},
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        add_node(cluster)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Any, **more: Any) -> Any:
    """Have one more machine join, as far as Ray can tell."""
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_NBYTES, **more)


class _AlwaysSend:
    """Sends every batch, however cheap: what is tested is the way, not whether it pays."""

    def send(self, count: int, steps: int) -> bool:
        return True

    def cheap(self, count: int, steps: int) -> bool:
        return False

    def note(self, count: int, steps: int, *, seconds: float, sent: bool) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_audit_of_traps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not audit rows that kill, hang and count their processes: they are never pure."""
    if {"processes", "execution", "cluster", "faults"} & set(request.path.parent.parts[-2:]):
        monkeypatch.setattr(Auditor, "is_due", lambda self, count: False)


def make_on(backend: str, name: Any, **kwargs: Any) -> Any:
    """Make an environment on a backend whose lanes get their part of every batch."""
    return sending(plangym_like.make(name, **{**BACKENDS[backend], **kwargs}))


def sending(env: Any) -> Any:
    """Return `env`, all its batches of two rows and more sent to lanes that are ready for them."""
    if isinstance(env, plangym_like.RayEnv):
        # With nobody here to step it, the first batch waits until an actor stands.
        env.batch_env.caller = None
    elif isinstance(env, plangym_like.ParallelEnv):
        env.batch_env._costs = _AlwaysSend()
        for lane in env.batch_env.lanes:
            lane.process.call("setup")()
            lane.arrive()
    return env


@pytest.fixture(scope="module", params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend; each test that asks for it runs on all of them."""
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return str(request.param)


@pytest.fixture(scope="module")
def shared_env(backend: str) -> Iterator[Callable[..., Any]]:
    """``shared_env(name, **kwargs)``: one environment per module, backend and arguments."""
    made: dict[str, Any] = {}

    def get(name: Any, **kwargs: Any) -> Any:
        key = repr((name, sorted(kwargs.items())))
        if key not in made:
            more = {"n_workers": 2} if backend == "ray" else {}
            made[key] = make_on(backend, name, **more, **kwargs)
        return made[key]

    yield get
    for env in made.values():
        env.close()


@pytest.fixture
def unhurried_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits have no limit of time, so what they find does not depend on the machine's speed."""
    monkeypatch.setattr(auditor, "FREE_SECONDS", float("inf"))


@pytest.fixture
def new_env(backend: str) -> Iterator[Callable[..., Any]]:
    """``new_env(name, **kwargs)``: an environment for one test alone."""
    made: list[Any] = []

    def make(name: Any, **kwargs: Any) -> Any:
        made.append(make_on(backend, name, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()
