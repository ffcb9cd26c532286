"""A Ray cluster of two nodes on this machine, so that one of them is not the driver's."""

from __future__ import annotations

import atexit
import functools
import logging


@functools.cache
def start(cores: int, store_nbytes: int, *, cores_here: int = 0) -> None:
    """Start a node with `cores_here` and one with `cores`, and connect this program to the first.

    Both are processes of this machine, without a network between them, but with two object stores.
    They end with the program. A second call with the same arguments does nothing.
    """
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cores_here, "object_store_memory": store_nbytes, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    atexit.register(cluster.shutdown)
    cluster.add_node(num_cpus=cores, object_store_memory=store_nbytes)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    atexit.register(ray.shutdown)
