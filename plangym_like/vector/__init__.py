"""Lanes: stateful environments that are stepped together.

- `lanes`: the interface, to reset and step lanes, and to get and set their state rows; checks of
  state rows and seeds
- `make_lanes`: makes lanes from ids, factories or environments, in their fastest form; compares
  the environments of other processes
- `step_arrays`: a step, and the arrays that its results are written into
- `sequential_lanes`: lanes stepped one by one
- `classic_lanes`: lanes of classic control, stepped by one vectorised call
- `robot_lanes`: lanes of MuJoCo robots, with vectorised rewards, observations and infos
- `row_lanes`: lanes that are state rows of one `PlanEnv`
- `process_lanes`: lanes in several processes, which are replaced when they die; this module uses
  `lanes_pool` (these processes and their jobs), `hosted_lanes` (what runs in them) and `memory`
  (what they share)
- `vector_env`, `make_vec`: lanes as a vectorised environment of Gymnasium; `batching`: its
  arguments and infos
- `sb3_vec_env`, `torchrl_env`: lanes as environments of Stable-Baselines3 and of torchrl
- `tree`: nested observations and actions; checks that values fit their arrays
"""
