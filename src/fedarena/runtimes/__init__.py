"""Runtimes of tasks: in this process, in worker processes, or on a Ray cluster.

`pool.py` is the one interface of a worker pool, implemented by `process_pool.py` and `ray_pool.py`. `client_runtime.py`
runs the clients of a round on a pool, `run_pool.py` opens pools for whole runs and trials. Nothing here knows how
learning works.
"""
