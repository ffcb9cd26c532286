"""Our fragments in torchrl's prioritised replay buffer, with returns of n steps."""

from typing import Any

import gymnasium
import pytest
import torch

from plangym_like.batchers.rollout import BaseActorModule, same

pytest.importorskip("torchrl", reason="torchrl is not installed")
# What torchrl does in its own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

N, GAMMA = 3, 0.9


class Random(BaseActorModule):
    def forward(self, obs: Any, *before: Any, hx: Any = None) -> Any:
        return torch.randint(2, obs.shape[:-1]), (), {}


def _filled(buffer_class: Any, **options: Any) -> Any:
    """Return a buffer with the steps of two fragments, and these steps."""
    from torchrl.data import LazyTensorStorage
    from torchrl.envs import MultiStepTransform

    buffer = buffer_class(
        storage=LazyTensorStorage(1000, ndim=2),
        transform=MultiStepTransform(n_steps=N, gamma=GAMMA, done_keys=[]),
        batch_size=64,
        priority_key="error",
        **options,
    )
    envs = [gymnasium.make("CartPole-v1", max_episode_steps=20) for _ in range(3)]
    torch.manual_seed(0)
    with same.rollout(envs, Random(), 40, seed=0) as it:
        fragments = [next(it).to_tensordict() for _ in range(2)]
    for fragment in fragments:
        buffer.extend(fragment)
    return buffer, torch.cat(fragments, 1)


def test_entries_are_returns_of_n_steps() -> None:
    from torchrl.data import TensorDictReplayBuffer

    buffer, steps = _filled(TensorDictReplayBuffer)
    found, shortened = buffer[:], 0
    # The last steps wait for what follows.
    assert found.batch_size == (3, steps.shape[1] - N)
    for lane in range(3):
        for t in range(found.shape[1]):
            entry, total, last = found[lane, t], 0.0, t
            for last in range(t, t + N):
                total += GAMMA ** (last - t) * steps["next", "reward"][lane, last].item()
                if steps["next", "done"][lane, last]:
                    break
            assert torch.equal(entry["observation"], steps["observation"][lane, t])
            assert entry["next", "reward"].item() == pytest.approx(total)
            assert entry["gamma"].item() == pytest.approx(GAMMA ** (last - t + 1))
            for key in ("observation", "done", "terminated", "truncated"):
                assert torch.equal(entry["next", key], steps["next", key][lane, last]), key
            shortened += last < t + N - 1
    assert shortened > 10


def test_errors_are_priorities() -> None:
    from torchrl.data import TensorDictPrioritizedReplayBuffer

    try:
        buffer, _ = _filled(TensorDictPrioritizedReplayBuffer, alpha=1.0, beta=1.0)
    except RuntimeError as error:
        if "SumSegmentTree" not in str(error):
            raise
        pytest.skip("torchrl's compiled code does not fit this version of torch")
    for _ in range(20):
        batch = buffer.sample()
        batch["error"] = 1e-6 + 1e3 * (batch["index"][0] == 0) * (batch["index"][1] == 5).float()
        buffer.update_tensordict_priority(batch)
    batch = buffer.sample()
    chosen = (batch["index"][0] == 0) & (batch["index"][1] == 5)
    assert chosen.float().mean() > 0.5
