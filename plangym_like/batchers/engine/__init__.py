"""The parts that all batchers share besides lanes: tensors, shared actors, and groups of workers.

- `tensor_tree`, `tensor_fitting`: trees of tensors, and checks of actors' outputs
- `shared_tree`, `packed_tree`: trees of tensors, in shared memory and as bytes
- `shared_actor`: the weights of an actor in memory that all workers read
- `random_streams`: the random generators of each group of lanes
- `worker_group`, `hosted_objects`, `group_context`: objects hosted in workers, and jobs for them
- `backend`, `workers`: where workers run: as processes on this machine (`process_workers`), in this
  process (`local_workers`), or as actors on a Ray cluster (`ray_workers`, `group_actor`)
- `buffers`: buffers that hosted objects fill and their owner reads
"""
