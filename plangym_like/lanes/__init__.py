"""Stateful environments that are stepped together, in numpy only.

- `lanes`: the interface: reset some, step some, get and set their state rows
- `make_lanes`: lanes of ids, factories or environments, in the fastest form that they have
- `sequential_lanes`, `classic_lanes`, `row_lanes`: stepped one after the other; classic control in
  columns; rows of one `PlanEnv` by its own batches
- `process_lanes`: in several processes, which are replaced when they die; `lane_parts`,
  `lanes_pool`, `hosted_lanes`, `lane_memory`, `lane_results` are its parts
- `seeding`: one seed for everything; results do not depend on the number of workers
- `tree`, `fitting`: nested observations and actions; values must fit where they are written
"""
