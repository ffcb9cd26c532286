"""Objects hosted in workers: in this process, in processes, or in actors on a Ray cluster.

- `group`: jobs, which call methods of hosted objects
- `backend`: what the three kinds of workers have in common, and workers in this process
- `processes`, `ray`: workers that are processes on this machine, or actors on a Ray cluster
"""
