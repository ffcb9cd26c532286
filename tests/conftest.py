"""What all tests share: environments made once for each module, backends, a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from backends import KINDS, STORE_NBYTES, SUITE, add_node, make_on
from hosted import HostedObject
from hypothesis import HealthCheck, settings
from playground import CounterEnv, Meeting
from suite import newer_id

from plangym_like.audit import auditor
from plangym_like.audit.auditor import Auditor
from plangym_like.processes.external_process import ExternalProcess

# What runs in the background is often started with interrupts ignored, and so are its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ray's workers would wait for all that others do on a busy machine.
os.environ.setdefault("RAY_worker_niceness", "0")

# Several processes run tests side by side. With a thread for each core in each of them, a small
# operation of torch takes ten milliseconds on a busy machine instead of twenty microseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says more about the machine than about the code.
settings.register_profile(
    "any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any_machine")

# Whichever tests run first, `gymnasium.make` knows Atari's ids, if they are installed.
with contextlib.suppress(ImportError):
    import ale_py

    gymnasium.register_envs(ale_py)

# Where `make test` looks for tests on a cluster (`ON_RAY` of the Makefile).
ON_RAY = re.compile(r"tests/(cluster|batchers/(workers|\w+/test_\w+_on_ray)|test_every_backend)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on a cluster; it runs last.

    A process that has used Ray may crash when it is forked.
    """
    items.sort(key=_is_on_cluster)
    _skip_examples_of_newer_ids(items)
    for item in items:
        if _is_on_cluster(item):
            item.add_marker(pytest.mark.ray)
            if not item.get_closest_marker("full") and not ON_RAY.search(item.nodeid):
                raise pytest.UsageError(f"`make test` runs no test on Ray in {item.path}")


def _skip_examples_of_newer_ids(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.DoctestItem) and (name := newer_id(item.dtest.docstring or "")):
            reason = f"Gymnasium {gymnasium.__version__} has no {name}"
            item.add_marker(pytest.mark.skip(reason=reason))


def _is_on_cluster(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return "ray" in (params.get("backend"), params.get("executor")) or "cluster" in getattr(
        item, "fixturenames", ()
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each, this process connected to the first.

    The second is another machine as far as anybody can tell; it alone has the resource "elsewhere".
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
        # Old versions of Ray connect a program to any of the nodes with its address.
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        add_node(cluster, resources={"elsewhere": 100})
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(autouse=True, scope="session")
def _no_families_of_doctests() -> None:
    """Remove the families that doctests have registered in this process."""
    known_ids = sys.modules.get("plangym_like.execution.known_ids")
    if known_ids is not None:
        known_ids.user_families.clear()


@pytest.fixture(autouse=True)
def _no_audit_of_traps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not audit rows that kill, hang and count their processes: they are never pure."""
    if {"processes", "execution", "cluster", "faults"} & set(request.path.parent.parts[-2:]):
        monkeypatch.setattr(Auditor, "is_due", lambda self, count: False)


@pytest.fixture(scope="module")
def serial() -> Iterator[CounterEnv]:
    """An environment without workers, to compare with."""
    with CounterEnv("toy") as env:
        env.reset(seed=5)
        yield env


@pytest.fixture(scope="module")
def hosted() -> Iterator[ExternalProcess]:
    """A worker that hosts a toy."""
    with ExternalProcess(HostedObject) as process:
        yield process


@pytest.fixture
def gymnasium_registry() -> Iterator[None]:
    """Forget the ids that a test registers."""
    kept = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(kept)


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    """Where workers wait for each other and for the test."""
    meeting = Meeting(tmp_path)
    yield meeting
    meeting.close()


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend: this process alone, unless a test names others."""
    name = str(getattr(request, "param", "serial"))
    if name == "ray":
        request.getfixturevalue("cluster")
    return name


@pytest.fixture(scope="module")
def shared_env(backend: str) -> Iterator[Callable[..., Any]]:
    """``shared_env(name, **kwargs)``: one environment per module, backend and arguments."""
    made: dict[str, Any] = {}

    def get(name: Any, **kwargs: Any) -> Any:
        key = repr((name, sorted(kwargs.items())))
        if key not in made:
            made[key] = make_on(backend, name, **kwargs)
        return made[key]

    yield get
    for env in made.values():
        env.close()


@pytest.fixture
def ignored_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reported that Python ignores: a random Ctrl-C may strike in a finalizer.

    pytest's own hook would record it, and fails when the next Ctrl-C strikes in the hook itself.
    """
    monkeypatch.setattr(sys, "unraisablehook", lambda report: None)


@pytest.fixture
def unhurried_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps cost audits no time, so what they find does not depend on the machine's speed.

    Their budget is then one step in 20, however many steps are taken.
    """
    monkeypatch.setattr(auditor, "clock", lambda: 0.0)
    monkeypatch.setattr(auditor, "_FIRST_SECONDS", 0.0)


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


@pytest.fixture(scope="module", params=KINDS)
def env(request: pytest.FixtureRequest, shared_env: Any) -> Any:
    """One environment of each kind."""
    name, kwargs = SUITE[request.param]
    return shared_env(name, **kwargs)


@pytest.fixture
def random_env(request: pytest.FixtureRequest, shared_env: Any) -> Any:
    """Those that draw numbers; tests say which."""
    name, kwargs = SUITE[request.param]
    return shared_env(name, **kwargs)
