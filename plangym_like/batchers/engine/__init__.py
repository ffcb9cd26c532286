"""What all doors stand on: lanes of environments, nests of tensors, actors, and who hosts them.

- `nests`: nested observations and actions as nests of tensors, and the `Leaf` that describes one
- `shared_nest`: a nest of tensors in memory that several processes share
- `lanes`, `gym_lanes`, `classic_lanes`, `make_lanes`: n environments that are stepped together
- `seeding`: one seed for everything, whatever the number of workers
- `shared_actor`: the weights of an actor where every worker can see them
- `crew`, `residents`: objects hosted in workers, jobs for them, and what can go wrong
- `backend`, `hosts`: where workers are: processes of this machine (`process_host`), this one
  (`own_host`), actors of a Ray cluster (`cluster_host`, `cluster_worker`)
- `pools`, `parcels`: what residents fill and their owner reads; what travels where that is not the
  same memory
"""
