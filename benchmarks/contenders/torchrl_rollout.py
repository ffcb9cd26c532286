"""torchrl: MultiSyncCollector, two workers with half of the environments each."""

from __future__ import annotations

from contenders import collecting
from contenders.contract import Job, Work

PACKAGES = ("torchrl", "tensordict", "torch", "gymnasium", "numpy")


def open_job(job: Job, *, workers: int) -> Work:
    """Start the workers."""
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import MultiSyncCollector
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import OneHotCategorical, ProbabilisticActor

    torch.set_num_threads(1)
    lanes = job.count // workers
    policy = ProbabilisticActor(
        TensorDictModule(collecting.make_policy(), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
    )
    name = job.env_id

    def make() -> SerialEnv:
        return SerialEnv(lanes, lambda: GymEnv(name))

    collector = MultiSyncCollector(
        [make] * workers,
        policy,
        frames_per_batch=job.count * collecting.STEPS,
        total_frames=-1,
        device="cpu",
    )
    batches = iter(collector)

    def step(count: int) -> int:
        return int(next(batches).numel())

    return Work(step, collector.shutdown, {})
