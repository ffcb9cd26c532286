"""What state rows do not hold must not change: the settings of an environment."""

import importlib.util
from functools import cached_property
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import plangym_like
from plangym_like.errors import ChangedSettingError, SnapshotError
from plangym_like.snapshots.base_settings import AttributeSettings

# Later than the trial of `make` sees.
LATE = 15


class Late(gymnasium.Wrapper):
    """Does something to its environment in step LATE of each episode."""

    count = 0

    def reset(self, **kwargs: Any) -> Any:
        self.count = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == LATE:
            self.act()
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + self.bonus(), *rest

    def act(self) -> None:
        raise NotImplementedError

    def bonus(self) -> float:
        return 0.0


class NewAttribute(Late):
    def act(self) -> None:
        self.unwrapped.phase_two = True

    def bonus(self) -> float:
        return 10.0 * getattr(self.unwrapped, "phase_two", False)


class OtherActions(Late):
    def act(self) -> None:
        self.unwrapped.action_space = spaces.Discrete(50)


class OtherActionsOutside(Late):
    def act(self) -> None:
        self.action_space = spaces.Discrete(50)


ROBOT = pytest.param(
    "InvertedPendulum-v5",
    marks=pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs MuJoCo"),
)


@pytest.mark.parametrize("name", ["Pendulum-v1", ROBOT])
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (NewAttribute, "phase_two changed from nothing to True"),
        (OtherActions, "action_space changed"),
        (OtherActionsOutside, r"OtherActionsOutside\._action_space cannot be saved"),
    ],
)
def test_a_late_change_of_what_rows_do_not_hold_is_an_error(
    name: str, kind: Any, what: str
) -> None:
    with plangym_like.make(name, wrappers=[kind], audit="off") as env:
        assert (env.snapshot, env.exactness) == ("native", "exact")
        first = state = env.reset(seed=0).state
        action = np.zeros(1, np.float32)
        for _ in range(LATE - 1):
            state = env.step_batch([action], state).states[0]
        with pytest.raises(SnapshotError, match=what):
            env.step_batch([action], state)
        if kind is not OtherActionsOutside:  # a restore puts it back
            with pytest.raises(ChangedSettingError, match=what):
                env.step_batch([action], first)


def test_an_attribute_that_its_class_computes_once_is_no_change() -> None:
    class Table:
        @cached_property
        def squares(self) -> list[int]:
            return [number**2 for number in range(3)]

    table = Table()
    settings = AttributeSettings(table)
    assert table.squares == [0, 1, 4]
    assert settings.change(thorough=True) == ""
    table.other = 1
    assert settings.change() == "Table.other changed from nothing to 1"


class Owned(gymnasium.Env):
    """Cannot be pickled; notes whether it was closed."""

    observation_space = spaces.Box(0, 99, (1,))
    action_space = spaces.Discrete(2)
    made: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.is_open = True
        self.made.append(self)

    def __reduce__(self) -> Any:
        raise TypeError("no")

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        self.is_open = False


def test_make_closes_every_copy_of_a_replayed_environment() -> None:
    with plangym_like.make(Owned) as env:
        assert env.snapshot == "replay"
        state = env.reset(seed=0).state
        env.step_batch([0, 1], state)
        assert any(each.is_open for each in Owned.made)
    assert len(Owned.made) > 2
    assert not any(each.is_open for each in Owned.made)
    Owned.made.clear()
