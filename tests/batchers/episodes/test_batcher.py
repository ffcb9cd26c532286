"""`Batcher`: chunks that fit together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from episode_envs import (
    END,
    Counter,
    Noisy,
    Rememberer,
    chance_env,
    count_env,
    endless_count_env,
)
from usual import first_of

from plangym_like.batchers.episodes import Batcher, DictTensor
from plangym_like.errors import InputError


def make(n_threads: int = 0, create_agent: Any = Counter, create_env: Any = endless_count_env):
    return Batcher(5, 1, n_threads, [0, 100], create_agent, {}, create_env, {})


def chunk(batcher: Batcher, **options: Any) -> Any:
    batcher.execute(**options)
    return batcher.get()


@pytest.mark.parametrize("n_threads", first_of([2, 0, 1]))
def test_chunks_follow_each_other_through_the_ends_of_episodes(n_threads: int) -> None:
    with make(n_threads) as batcher:
        chunks = [chunk(batcher) for _ in range(5)]
        assert batcher.n_running == 8
    assert all(part.lengths.tolist() == [5] * 8 for part in chunks)
    whole = {key: torch.cat([part[key] for part in chunks], 1) for key, _ in chunks[0].items()}
    t = torch.arange(25).expand(8, -1)
    index = t % END
    assert torch.equal(whole["frame"][..., 0], index.float())
    assert torch.equal(whole["_frame"][..., 0], index + 1.0), "the final observation is kept"
    assert torch.equal(whole["_reward"], 10.0 * index + whole["action"])
    assert torch.equal(whole["_done"], index == END - 1)
    assert torch.equal(whole["initial_state"], index == 0)
    assert torch.equal(whole["steps"], t), "an agent's state goes on until it says otherwise"


def test_environments_that_end_drop_out() -> None:
    ends = torch.tensor([3, 12, 5, 9, 6, 5, 1, 10])
    with make(create_env=count_env) as batcher:
        batcher.reset(env_info=DictTensor({"end": ends, "mark": torch.arange(8)}))
        assert batcher.n_running is None
        first, second, third = (chunk(batcher) for _ in range(3))
        assert batcher.n_running == 0
        assert chunk(batcher) is None and chunk(batcher) is None
        batcher.reset()
        assert chunk(batcher).lengths.tolist() == [5] * 8
    assert first.lengths.tolist() == ends.clamp(max=5).tolist()
    assert second.lengths.tolist() == [5, 4, 1, 5] and third.lengths.tolist() == [2]
    assert second["frame"][:, 0].tolist() == [[5, 1], [5, 3], [5, 4], [5, 7]]
    assert second.env_info["mark"].tolist() == [1, 3, 4, 7]
    assert not second["frame"][2, 1:].any()


@pytest.mark.parametrize("n_threads", [0, 2])
def test_the_agent_can_be_told_something_else_at_every_chunk(n_threads: int) -> None:
    answers = torch.arange(8)
    with make(n_threads, create_env=count_env) as batcher:
        env_info = DictTensor({"end": torch.tensor([3, 20, 20, 20, 4, 20, 20, 20])})
        batcher.reset(DictTensor({"answer": answers}), env_info)
        first = chunk(batcher)
        second = chunk(batcher, agent_info=DictTensor({"answer": answers + 1}))
        third = chunk(batcher)
    assert first["action"][:, 0].tolist() == answers.tolist()
    running = [1, 2, 3, 5, 6, 7]
    for part in (second, third):
        assert part["action"].tolist() == [[i + 1] * 5 for i in running]
        assert part.agent_info["answer"].tolist() == [i + 1 for i in running]


def test_the_number_of_processes_changes_nothing() -> None:
    found = []
    for n_threads in (0, 2):
        with make(n_threads, Noisy, chance_env) as batcher:
            found.append([chunk(batcher) for _ in range(3)])
    for other in found[1:]:
        for mine, yours in zip(found[0], other, strict=True):
            if mine is None or yours is None:
                assert mine is yours
                continue
            assert all(torch.equal(value, yours[key]) for key, value in mine.items())


def test_infos_need_a_row_for_each_environment() -> None:
    wrong = DictTensor({"answer": torch.arange(3)})
    with make() as batcher:
        for call in (batcher.reset, lambda info: batcher.execute(agent_info=info)):
            with pytest.raises(InputError, match="agent_info has 3 rows for 8 environments"):
                call(wrong)
        with pytest.raises(InputError, match="env_info has 3 rows for 8 environments"):
            batcher.reset(env_info=wrong)
        assert chunk(batcher).lengths.tolist() == [5] * 8, "the batcher can still be used"


def test_execute_may_be_told_everything_at_once() -> None:
    answers = torch.arange(8)
    with make(create_env=count_env) as batcher:
        for _ in range(2):
            batcher.execute(8, DictTensor({"answer": answers}), DictTensor({"end": answers + 1}))
            part = batcher.get()
            assert part is not None and part.lengths.tolist() == [1, 2, 3, 4, 5, 5, 5, 5]
            assert part["action"][:, 0].tolist() == answers.tolist()
        batcher.reexecute()
        part = batcher.get()
        assert part is not None and part.lengths.tolist() == [1, 2, 3]
        assert part["action"][:, 0].tolist() == [5, 6, 7]
        with pytest.raises(InputError, match="plays all of its 8 environments, not 3"):
            batcher.execute(3)


def test_the_history_is_that_of_the_chunk() -> None:
    with make(create_agent=Rememberer) as batcher:
        for part in (chunk(batcher), chunk(batcher)):
            assert part["length"].tolist() == [[0, 1, 2, 3, 4]] * 8
            before = part["_reward"].cumsum(1) - part["_reward"]
            assert torch.equal(part["known"], before)
