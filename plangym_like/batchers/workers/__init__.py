"""Objects hosted in workers: in this process, in processes, or in actors on a Ray cluster.

- `group`: `Workers`, the user's choice; jobs, which call methods of hosted objects
- `hosted`: what is hosted in a worker
- `remote`: workers that are processes on this machine, or actors on a Ray cluster
"""
