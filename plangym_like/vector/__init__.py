"""Lanes: stateful environments that are stepped together.

- `lanes`: the interface, to reset and step lanes, and to get and set their state rows; a step, and
  the arrays that its results are written into; checks of state rows and seeds
- `make_lanes`: makes lanes from ids, factories or environments, in their fastest form
- `sequential_lanes`: lanes stepped one by one
- `kernel_lanes`: lanes stepped together, by a kernel or as state rows of one `PlanEnv`
- `robot_kernel`: the kernel of MuJoCo robots, with vectorised rewards, observations and infos
- `process_lanes`: lanes in several processes, which are replaced when they die; this module uses
  `lanes_pool` (these processes and their jobs) and `hosted_lanes` (what runs in them, and their
  shared memory)
- `vector_env`, `async_vector_env`, `make_vec`: lanes as a vectorised environment of Gymnasium;
  `batching`: its arguments and infos; `start_states`: episodes that begin in given states
- `sb3_vec_env`, `torchrl_env`: lanes as environments of Stable-Baselines3 and of torchrl
- `tree`: nested observations and actions; `memory`: such trees in memory that processes share
"""
