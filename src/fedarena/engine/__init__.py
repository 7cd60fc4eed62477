"""The engine: setup of an experiment, the round loop and the asynchronous loop, tasks of clients, the local solver,
evaluation, checkpoints, and the models of devices and availability. Where tasks run is decided in runtimes/."""
