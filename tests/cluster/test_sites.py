"""Where workers go, without a cluster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plangym_like.cluster.sites import choose_sites


@given(
    cores=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    wanted=st.none() | st.integers(0, 150),
)
def test_every_worker_finds_a_core(cores, wanted):
    nodes = {f"node{index}": free for index, free in enumerate(cores)}
    sites = choose_sites(nodes, wanted)
    assert sum(site.workers for site in sites) == min(sum(cores), wanted or 0) or wanted is None
    if wanted is None:
        assert sum(site.workers for site in sites) == sum(cores)
    used = dict.fromkeys(nodes, 0)
    for site in sites:
        assert 1 <= site.workers <= 16
        used[site.node] += site.workers
    assert all(used[node] <= nodes[node] for node in nodes)


def test_workers_are_spread_evenly():
    sites = choose_sites({"a": 8, "b": 8, "c": 8}, 6)
    assert {site.node: site.workers for site in sites} == {"a": 2, "b": 2, "c": 2}
