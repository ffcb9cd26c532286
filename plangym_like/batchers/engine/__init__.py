"""Code that the batchers share: tensor trees, shared actors and worker groups.

- `tensor_tree`, `tensor_fitting`: trees of tensors, and checks of actors' outputs
- `shared_actor`: the weights of an actor in memory that all workers read
- `random_streams`: the random generators of each group of lanes
- `worker_group`, `hosted_objects`, `group_context`: objects hosted in workers, and jobs that call
  their methods
- `backend`, `workers`: the choice of where workers run, and the base class of all workers
- `process_workers`: workers that are processes on this machine
- `local_workers`: a single worker, which is this process
- `ray_workers`, `group_actor`: workers that are actors on a Ray cluster
"""
