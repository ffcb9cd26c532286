"""Objects hosted in workers: in this process, in processes, or in actors on a Ray cluster.

- `backend`: `Workers`, the user's choice, and what the three kinds of workers have in common
- `group`: jobs, which call methods of hosted objects
- `remote`: workers that are processes on this machine, or actors on a Ray cluster
"""
