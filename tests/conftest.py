"""One suite over every backend: environments made once for each module and backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import plangym_like

BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {},
    "parallel": {"n_workers": 2},
    "isolated": {"n_workers": 2, "isolate": True},
}


class _AlwaysSend:
    """Sends every batch, however cheap: what is tested is the way, not whether it pays."""

    def send(self, count: int, steps: int) -> bool:
        return True

    def note(self, count: int, steps: int, *, seconds: float, sent: bool) -> None:
        pass


def make_on(backend: str, name: Any, **kwargs: Any) -> Any:
    """Make an environment on a backend whose lanes are ready and get their part of every batch."""
    return sending(plangym_like.make(name, **BACKENDS[backend], **kwargs))


def sending(env: Any) -> Any:
    """Return `env`, its lanes ready, all its batches of two rows and more sent to them."""
    if isinstance(env, plangym_like.ParallelEnv):
        env.batch_env._costs = _AlwaysSend()
        for lane in env.batch_env.lanes:
            lane.process.call("setup")()
            lane.arrive()
    return env


@pytest.fixture(scope="module", params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend; each test that asks for it runs on all of them."""
    return str(request.param)


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
def new_env(backend: str) -> Iterator[Callable[..., Any]]:
    """``new_env(name, **kwargs)``: an environment for one test alone."""
    made: list[Any] = []

    def make(name: Any, **kwargs: Any) -> Any:
        made.append(make_on(backend, name, **kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()
