"""Which nodes of a Ray cluster step rows, with how many processes; and what actors claim there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from plangym_like.errors import InputError
from plangym_like.support.arguments import as_count

# The most workers of one actor. Its process copies inputs and results for all of them, so a large
# node has several actors.
_MOST_WORKERS = 16
# The keys of `resources` that are options of their own.
_NAMED_OPTIONS = ("num_cpus", "num_gpus", "memory")


class ClusterOptions(NamedTuple):
    """Which processes a user of the cluster wants, and where; see `RayEnv` for the fields."""

    n_workers: int | None
    resources: dict[str, Any] | None
    placement: Any
    runtime_env: dict[str, Any] | None

    def check(self) -> None:
        """Raise `InputError` if an option is invalid."""
        if self.n_workers is not None:
            as_count("n_workers", self.n_workers)
        check_resources(self.resources)
        if isinstance(self.placement, str):
            raise InputError(f"placement must be a Ray placement group, got {self.placement!r}")


class Site(NamedTuple):
    """Where one actor runs, and the number of its processes that step rows.

    ``node`` is the id of a node. In a placement group, ``bundle`` is the index of a bundle, and
    ``node`` is empty until the bundle has a node.
    """

    node: str
    workers: int
    bundle: int = -1


def choose_sites(cores: Mapping[str, int], wanted: int | None) -> list[Site]:
    """Return sites for `wanted` workers (``None``: one per core) on nodes with free `cores`.

    Each worker goes to the node with the most free cores left. Each node gets the fewest actors
    with at most 16 workers each. There are fewer workers than wanted if there are not enough cores.

    Parameters
    ----------
    cores : mapping of str to int
        Free cores by node.
    wanted : int or None
        The maximum number of workers.

    Examples
    --------
    >>> choose_sites({"a": 4, "b": 2}, 4)
    [Site(node='a', workers=3, bundle=-1), Site(node='b', workers=1, bundle=-1)]
    """
    free = {node: count for node, count in cores.items() if count > 0}
    left = sum(free.values()) if wanted is None else min(wanted, sum(free.values()))
    counts = dict.fromkeys(free, 0)
    for _ in range(left):
        node = max(free, key=lambda each: free[each] - counts[each])
        counts[node] += 1
    found = []
    for node, count in counts.items():
        if not count:
            continue
        size = -(-count // -(-count // _MOST_WORKERS))
        found += [Site(node, min(size, count - first)) for first in range(0, count, size)]
    return found


def actor_options(
    cores: int, resources: dict[str, Any] | None, runtime_env: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the arguments of ``.options`` for an actor that claims `cores` cores and `resources`.

    ``resources["num_cpus"]`` replaces `cores`. Ray does not restart the actor or repeat a call,
    since the environment's state would be lost without an error.

    >>> actor_options(2, {"num_gpus": 1, "simulator": 1}, None)["resources"]
    {'simulator': 1}
    """
    custom = dict(resources or {})
    options: dict[str, Any] = {"num_cpus": cores, "max_restarts": 0, "max_task_retries": 0}
    options.update({key: custom.pop(key) for key in _NAMED_OPTIONS if key in custom})
    if custom:
        options["resources"] = custom
    if runtime_env is not None:
        options["runtime_env"] = runtime_env
    return options


def check_resources(resources: Any) -> None:
    """Raise `InputError` unless `resources` is a dict or ``None``."""
    if resources is not None and not isinstance(resources, dict):
        raise InputError(f"resources must be a dict such as {{'num_gpus': 1}}, got {resources!r}")
