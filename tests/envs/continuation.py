"""How the tests of the families ask whether a restored state goes on as if nothing had happened."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from plangym_like.batch.simulator import Simulator
from plangym_like.envs.codec import Codec
from plangym_like.envs.gymnasium_simulator import GymnasiumSimulator
from plangym_like.snapshots import plain_data
from plangym_like.snapshots.chains import CONSTANT
from plangym_like.states.random_state import seeded_generator
from plangym_like.states.rows import StateFormat


def format_of(sim: Simulator) -> StateFormat:
    return StateFormat(
        sim.family,
        sim.fingerprint_fields(),
        sim.payload_nbytes,
        checksum=sim.checksum,
        variable=sim.variable,
    )


_garbage = itertools.cycle([0xAA, 0x55])


def saved(sim: Simulator) -> np.ndarray:
    """Return the state in a row that held something else before, each time another thing."""
    row = np.zeros(32 + sim.payload_nbytes, np.uint8)
    row[32:] = next(_garbage)
    sim.save(row)
    return row


def restore(sim: Simulator, row: np.ndarray) -> None:
    sim.write(row[32:])


def content(outcome: Any) -> bytes:
    """Return everything that a step gave, as bytes that differ if anything does."""
    return plain_data.encode(outcome)


def assert_goes_on(
    sim: Simulator,
    *,
    seed: int,
    steps: int = 40,
    compare_rows: bool = True,
    ends: bool = True,
) -> None:
    """Save at random points, do something else, restore, and expect the very same future.

    Episodes are played on past their end, which has to be as deterministic, unless `ends`.
    """
    random = np.random.default_rng(seed)
    sim.action_space.seed(seed)
    sim.reset(seed=seed)
    for _ in range(int(random.integers(0, steps))):
        if sum(sim.step(sim.action_space.sample(), 1)[2:4]) and ends:
            sim.reset()
    row = saved(sim)
    kept = row.copy()
    actions = [copy.deepcopy(sim.action_space.sample()) for _ in range(steps)]
    future = _play(sim, actions, ends)
    for _ in range(2):
        sim.reset(seed=int(random.integers(1000)))
        for _ in range(int(random.integers(1, steps))):
            if sum(sim.step(sim.action_space.sample(), 1)[2:4]):
                sim.reset()
        restore(sim, row)
        assert (row == kept).all()
        if compare_rows:
            assert saved(sim).tobytes() == row.tobytes()
        again = _play(sim, actions, ends)
        for step, (before, after) in enumerate(zip(future, again, strict=True)):
            assert before[0] == after[0], f"step {step} is another"
            if compare_rows:
                assert before[1] == after[1], f"the state after step {step} is another"


def _play(sim: Simulator, actions: list[Any], ends: bool) -> list[tuple[bytes, bytes]]:
    trace = []
    for action in actions:
        outcome = sim.step(action, 1)
        trace.append((content(outcome), saved(sim).tobytes()))
        if ends and (outcome[2] or outcome[3]):
            break
    return trace


def assert_equals_gymnasium(
    sim: Simulator,
    make: Callable[[], gymnasium.Env[Any, Any]],
    *,
    seed: int,
    steps: int = 200,
) -> None:
    """Play seeded episodes in `sim` and in what `make` returns: the same bytes."""
    env = make()
    env.action_space.seed(seed)
    sim.renew()
    assert content(sim.reset(seed=seed)) == content(env.reset(seed=seed))
    for _ in range(steps):
        action = env.action_space.sample()
        obs, reward, terminated, truncated, info, _ = sim.step(action, 1)
        expected = env.step(action)
        assert content((obs, info)) == content((expected[0], expected[4]))
        assert (reward, terminated, truncated) == expected[1:4]
        if terminated or truncated:
            assert content(sim.reset()) == content(env.reset())
    env.close()


class PlainCodec(Codec):
    nbytes = 2048
    saves_generator = False

    def __init__(self, base: Any) -> None:
        self.base = base

    def fingerprint_fields(self) -> dict[str, Any]:
        return {}

    def _attributes(self) -> dict[str, Any]:
        return {name: self.base.__dict__[name] for name in vars(self.base) if name not in CONSTANT}

    def read(self, payload: np.ndarray) -> None:
        data = plain_data.encode(self._attributes())
        payload[:] = 0
        payload[:8].view(np.int64)[0] = len(data)
        payload[8 : 8 + len(data)] = np.frombuffer(data, np.uint8)

    def write(self, payload: np.ndarray) -> None:
        used = int(payload[:8].view(np.int64)[0])
        own = self.base._np_random
        vars(self.base).update(plain_data.decode(payload[8 : 8 + used].tobytes()))
        if own is not None and self.base._np_random is not None:
            # Families write into the generator that is there.
            own.bit_generator.state = self.base._np_random.bit_generator.state
            self.base._np_random = own

    def reseed(self, seed: int) -> None:
        self.base._np_random = seeded_generator(seed)


class PlainSimulator(GymnasiumSimulator):
    """Any small environment whose attributes are plain data: the wrappers are what is tested."""

    family = "TEST"

    def make_codec(self) -> PlainCodec:
        self.reset_once()
        return PlainCodec(self.base)
