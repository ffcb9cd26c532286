"""Lanes: stateful environments that are stepped together.

- `lanes`: the interface, to reset and step lanes, and to get and set their state rows
- `make_lanes`: makes lanes from ids, factories or environments, in their fastest form
- `step_arrays`: the arrays that results are written into
- `sequential_lanes`: lanes stepped one by one
- `classic_lanes`: lanes of classic control, stepped by one vectorised call
- `robot_lanes`: lanes of MuJoCo robots, with vectorised rewards, observations and infos
- `row_lanes`: lanes that are state rows of one `PlanEnv`
- `process_lanes`: lanes in several processes, which are replaced when they die; this module uses
  `lane_parts`, `lanes_pool`, `hosted_lanes`, `lane_memory` and `lane_results`
- `vector_env`, `make_vec`: lanes as a vectorised environment of Gymnasium
- `seeding`: derives all seeds from one, independently of the number of workers
- `tree`, `fitting`: nested observations and actions; checks that values fit their arrays
"""
