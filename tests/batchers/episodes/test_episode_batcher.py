"""`EpisodeBatcher`: every number of every episode, whoever played it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episode_envs import (
    END,
    Counter,
    Noisy,
    Rememberer,
    Weighted,
    cart_pole_env,
    chance_env,
    count_env,
    endless_count_env,
    waiting_env,
)
from usual import first_of

from plangym_like.batchers.episodes import Agent, DictTensor, EpisodeBatcher, Trajectories
from plangym_like.errors import InputError, WorkerTimeoutError


def make(
    n_threads: int = 0,
    seeds: Any = (0, 100),
    create_agent: Any = Counter,
    create_env: Any = count_env,
    n_timesteps: int = 5,
    n_slots: int = 8,
    **env_args: Any,
) -> EpisodeBatcher:
    given = list(seeds) if np.iterable(seeds) else seeds
    return EpisodeBatcher(
        n_timesteps, n_slots, n_threads, given, create_agent, {}, create_env, env_args
    )


def gathered(batcher: EpisodeBatcher, n: int, **infos: Any) -> Trajectories:
    batcher.execute(n, **infos)
    trajectories = batcher.get()
    assert trajectories is not None
    return trajectories


def assert_counts(trajectories: Trajectories, ends: Any = END) -> None:
    """Check every field of every step of episodes of `Count`, played by `Counter`."""
    n = trajectories.n_elems()
    ends = torch.as_tensor(ends).expand(n)
    assert trajectories.lengths.tolist() == ends.tolist()
    mask = trajectories.mask()
    t = torch.arange(trajectories.n_timesteps).expand(n, -1)
    last = t == ends[:, None] - 1
    action = trajectories["action"]
    expected = {
        "frame": t.float(),
        "_frame": t + 1.0,
        "_reward": 10.0 * t + action,
        "_done": last,
        "_terminated": last,
        "_truncated": torch.zeros_like(mask),
        "_initial_state": torch.zeros_like(mask),
        "_last_action": action,
        "initial_state": t == 0,
        "done": torch.zeros_like(mask),
        "reward": torch.where(t > 0, trajectories["_reward"].roll(1, 1), 0.0),
        "last_action": torch.where(t > 0, action.roll(1, 1), 0),
        "twice": 2.0 * action,
        "steps": t,
        "_steps": t + 1,
    }
    for key, value in expected.items():
        found = trajectories[key]
        found = found[..., 0] if key.endswith("frame") else found
        assert found.dtype is value.dtype and found.shape == value.shape, key
        assert torch.equal(found, torch.where(mask, value, torch.zeros_like(value))), key
    for key, value in trajectories.items():
        assert not value[~mask].any(), key


@pytest.fixture(scope="module", params=[0, 2])
def shared(request: pytest.FixtureRequest) -> Any:
    with make(request.param) as batcher:
        yield batcher


def test_every_alignment(shared: EpisodeBatcher) -> None:
    trajectories = gathered(shared, 8)
    assert_counts(trajectories)
    assert (trajectories["action"][0] == torch.tensor([1, 0, 1, 0, 1, 0, 1])).all()
    assert trajectories.agent_info.is_empty() and trajectories.env_info.is_empty()


@pytest.mark.parametrize("n", [1, 3, 19])
def test_any_number_of_episodes_with_a_row_of_the_infos_each(
    shared: EpisodeBatcher, n: int
) -> None:
    ends = 1 + (torch.arange(n) * 5) % 12
    env_info = DictTensor({"end": ends, "mark": torch.arange(n) + 0.5})
    agent_info = DictTensor({"answer": torch.arange(n) % 10})
    trajectories = gathered(shared, n, agent_info=agent_info, env_info=env_info)
    assert_counts(trajectories, ends)
    assert (trajectories["frame"][:, 0, 1] == torch.arange(n) + 0.5).all()
    told = (torch.arange(n) % 10)[:, None] * trajectories.mask()
    assert torch.equal(trajectories["action"], told)
    assert trajectories.env_info["end"].tolist() == ends.tolist()
    assert trajectories.agent_info["answer"].tolist() == agent_info["answer"].tolist()


def test_execute_again(shared: EpisodeBatcher) -> None:
    ends = torch.tensor([2, 5, 3])
    gathered(shared, 3, env_info=DictTensor({"end": ends}))
    shared.reexecute()
    trajectories = shared.get()
    assert trajectories is not None
    assert_counts(trajectories, ends)
    assert trajectories.env_info["end"].tolist() == ends.tolist()


@pytest.mark.parametrize("n_threads", first_of([2, 1]))
def test_get_need_not_wait(n_threads: int, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with make(n_threads, create_env=waiting_env, path=str(go)) as batcher:
        batcher.execute(8)
        looks = [batcher.get(blocking=False)]
        go.touch()
        while looks[-1] is None:
            looks.append(batcher.get(blocking=False))
        assert looks[0] is None
        assert_counts(looks[-1])


def _seeds_of(number: int) -> dict[str, Any]:
    return {"seeds": [number * 1000 + 7, number * 1000 + 500, number * 1000 + 3]}


@pytest.mark.parametrize("create_env", [cart_pole_env, chance_env], ids=["CartPole", "Chance"])
@pytest.mark.parametrize("create_agent", first_of([Noisy, Counter]))
def test_the_number_of_processes_changes_nothing(create_agent: Any, create_env: Any) -> None:
    found = []
    for n_threads, n_slots, n_timesteps in ((0, 30, 40), (2, 1, 6)):
        sizes = {"n_slots": n_slots, "n_timesteps": n_timesteps, **_seeds_of(1)}
        with make(n_threads, create_agent=create_agent, create_env=create_env, **sizes) as batcher:
            found.append([gathered(batcher, n) for n in (7, 10)])
    for one, other in itertools.product(found[:1], found[1:]):
        for mine, yours in zip(one, other, strict=True):
            assert mine.lengths.tolist() == yours.lengths.tolist()
            for key, value in mine.items():
                assert value.numpy().tobytes() == yours[key].numpy().tobytes(), key


@pytest.mark.parametrize("n_threads", [0, 2])
def test_weights_are_those_of_the_last_update_before_execute(n_threads: int) -> None:
    with make(n_threads, create_agent=Weighted, n_slots=1, n_timesteps=3) as batcher:
        first = gathered(batcher, 8)["action"].unique()
        assert len(first) == 1, "all groups begin with equal weights"
        weight = torch.tensor([3.0])
        batcher.update({"weight": weight})
        weight += 1
        assert gathered(batcher, 8)["action"].unique().tolist() == [3]
        batcher.execute(8)
        batcher.update({"weight": torch.tensor([5.0])})
        trajectories = batcher.get()
        assert trajectories is not None and trajectories["action"].unique().tolist() == [3]
        batcher.reexecute()
        trajectories = batcher.get()
        assert trajectories is not None and trajectories["action"].unique().tolist() == [5]


def test_an_agent_may_be_updated_with_anything_it_understands() -> None:
    class Told(Counter):
        answer = 0

        def update(self, state_dict: Any) -> None:
            self.answer = state_dict["answer"]

        def __call__(self, state: Any, observation: Any, *args: Any, **options: Any) -> Any:
            state, action, new_state = super().__call__(state, observation)
            action["action"] = torch.full_like(action["action"], self.answer)
            return state, action, new_state

    with make(1, create_agent=Told) as batcher:
        batcher.update({"answer": 4})
        assert gathered(batcher, 3)["action"].unique().tolist() == [4]


@pytest.mark.parametrize("n_threads", [0, 1])
def test_the_history_is_the_episode_so_far(n_threads: int) -> None:
    ends = torch.tensor([3, 20, 6, 18, 1])
    with make(n_threads, create_agent=Rememberer, n_timesteps=4) as batcher:
        trajectories = gathered(batcher, 5, env_info=DictTensor({"end": ends}))
    mask = trajectories.mask()
    before = trajectories["_reward"].cumsum(1) - trajectories["_reward"]
    assert torch.equal(trajectories["known"], before * mask)
    assert torch.equal(trajectories["length"], trajectories["steps"])


def test_an_agent_may_answer_in_any_dtype() -> None:
    class Half(Counter):
        def __call__(self, *args: Any, **options: Any) -> Any:
            state, action, new_state = super().__call__(*args, **options)
            return state, DictTensor({**dict(action.items()), "half": self.half(action)}), new_state

        def half(self, action: Any) -> Any:
            return {"of": (action["action"][:, None] + 0.5).bfloat16().repeat(1, 2)}

    with make(create_agent=Half) as batcher:
        trajectories = gathered(batcher, 2)
    assert trajectories["half", "of"].dtype is torch.bfloat16
    assert torch.equal(trajectories["half", "of"][..., 1].float(), trajectories["action"] + 0.5)


def test_what_was_got_is_the_users_to_keep(shared: EpisodeBatcher) -> None:
    kept = gathered(shared, 4, agent_info=DictTensor({"answer": torch.tensor([1, 2, 3, 4])}))
    copy = kept.steps.clone()
    gathered(shared, 16, agent_info=DictTensor({"answer": torch.full((16,), 9)}))
    assert (kept.steps == copy).all()


@pytest.mark.parametrize("seeds", [None, 5])
def test_seeds_may_be_left_to_the_batcher(seeds: Any) -> None:
    with EpisodeBatcher(5, 4, 2, seeds, Counter, {}, chance_env, {}) as batcher:
        assert len(gathered(batcher, 12)["frame"][:, 0, 0].unique()) == 12


def test_what_cannot_be_executed_is_refused_and_changes_nothing() -> None:
    with make() as batcher:
        for wrong in (0, -1, 2.5, True):
            with pytest.raises(InputError, match="n_episodes must be a whole number"):
                batcher.execute(wrong)
        with pytest.raises(InputError, match="env_info has 3 rows for 4 episodes"):
            batcher.execute(4, env_info=DictTensor({"end": torch.arange(3)}))
        with pytest.raises(InputError, match="nothing was executed before"):
            batcher.reexecute()
        with pytest.raises(InputError, match="nothing to get"):
            batcher.get()
        batcher.execute(2)
        with pytest.raises(InputError, match="has not been fetched yet"):
            batcher.execute(2)
        trajectories = batcher.get()
        assert trajectories is not None
        assert_counts(trajectories)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_slots": 0}, "n_slots must be a whole number of at least 1"),
        ({"n_timesteps": 0}, "n_timesteps must be a whole number of at least 1"),
        ({"n_threads": -1}, "n_threads must be a whole number of at least 0"),
        ({"n_threads": 3}, "needs at least 3 seeds, one for each process, got 2"),
        ({"seeds": []}, "seeds must be whole numbers"),
        ({"seeds": [-1]}, "seeds must be whole numbers"),
        ({"seeds": [0.5, 100]}, "seeds must be whole numbers"),
        ({"seeds": 1.5}, "seeds must be whole numbers"),
        ({"seeds": [3, 4, 3]}, "groups with equal seeds would play equal episodes"),
        ({"create_env": None}, "create_env must be callable"),
    ],
)
def test_batchers_that_make_no_sense(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**changed)


class _Wrong(Agent):
    """Returns what is wrong."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls = 0

    def __call__(self, state: Any, observation: Any, agent_info: Any = None, history: Any = None):
        self.calls += 1
        n = observation.n_elems()
        action = DictTensor({"action": torch.zeros(n, dtype=torch.int64), "x": torch.zeros(n, 2)})
        if self.kind == "pair":
            return action, DictTensor()
        if self.kind == "rows":
            return DictTensor(), DictTensor({"action": torch.zeros(9)}), DictTensor()
        if self.kind == "name":
            return DictTensor({"reward": torch.zeros(n)}), action, DictTensor()
        if self.calls > 2:
            changes = {"shape": torch.zeros(n, 3), "dtype": torch.zeros(n, 2).double()}
            if self.kind == "less":
                del action["x"]
            elif self.kind == "more":
                action["y"] = torch.zeros(n)
            else:
                action["x"] = changes[self.kind]
        return DictTensor(), action, DictTensor()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("pair", r"_Wrong must return \(agent_state, action, new_state\), got tuple of 2"),
        ("rows", "returned 9 rows as its action, and 4 environments are running"),
        ("name", "two fields of a step are called 'reward'"),
        ("shape", r"'x' is torch.float32 of shape \(3,\) and was torch.float32 of shape \(2,\)"),
        ("dtype", "'x' is torch.float64"),
        ("less", "'x' is missing and was torch.float32"),
        ("more", "'y' is torch.float32 .* and was missing"),
    ],
)
def test_agents_that_break_their_word(kind: str, message: str) -> None:
    args = {"kind": kind}
    with EpisodeBatcher(5, 8, 0, [0], _Wrong, args, count_env, {}) as batcher:
        batcher.execute(4)
        with pytest.raises(InputError, match=message):
            batcher.get()


def test_environments_without_an_end_belong_elsewhere() -> None:
    with make(create_env=endless_count_env) as batcher:
        batcher.execute(1)
        with pytest.raises(InputError, match="GymInfEnv never end; use a Batcher for it"):
            batcher.get()


def test_a_get_that_has_waited_long_enough_loses_nothing() -> None:
    with make(1, n_timesteps=50) as batcher:
        batcher.execute(2, env_info=DictTensor({"end": torch.tensor([1999, 1999])}))
        with pytest.raises(WorkerTimeoutError, match="not done after 0.001 s: groups 0"):
            batcher.get(timeout=0.001)
        trajectories = batcher.get()
        assert trajectories is not None and trajectories.lengths.tolist() == [1999, 1999]
