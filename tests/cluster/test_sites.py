"""Where workers go, without a cluster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plangym_like.cluster.sites import choose_sites


@given(
    cores=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    wanted=st.none() | st.integers(0, 150),
    cores_per_actor=st.none() | st.integers(1, 9),
    spread=st.booleans(),
)
def test_every_worker_finds_a_core(cores, wanted, cores_per_actor, spread):
    nodes = {f"node{index}": free for index, free in enumerate(cores)}
    sites = choose_sites(nodes, wanted, cores_per_actor=cores_per_actor, spread=spread)
    assert sum(site.workers for site in sites) == min(sum(cores), wanted or 0) or wanted is None
    if wanted is None:
        assert sum(site.workers for site in sites) == sum(cores)
    used = dict.fromkeys(nodes, 0)
    for site in sites:
        assert 1 <= site.workers <= (cores_per_actor or 16)
        used[site.node] += site.workers
    assert all(used[node] <= nodes[node] for node in nodes)
    if not spread and sites:
        left = [nodes[node] - used[node] for node in nodes if used[node]]
        assert sum(map(bool, left)) <= 1, "a node was begun before another was full"


def test_workers_are_spread_evenly():
    sites = choose_sites({"a": 8, "b": 8, "c": 8}, 6)
    assert {site.node: site.workers for site in sites} == {"a": 2, "b": 2, "c": 2}
