"""Benchmarks: speed is measured as ratios within one run, on synthetic data of the right shape.

`workloads.py` defines what is measured and its targets, `baselines.py` and `flower_simulation.py` the designs that are
compared, `runner.py` how they are timed, `machine.py` the speed and memory of the machine, `table_format.py` the tables.
The suites are `rounds.py`, `population.py`, `vertical.py` and `scale.py` (with `costs.py`, `availability.py` and
`runtimes.py`); `suites.py` lists them. Scripts that write pages of the documentation are in `benchmarks/`.
"""

from fedarena.bench.machine import proportional_megabytes
from fedarena.bench.suites import measure, missed_targets, print_tables

__all__ = ["measure", "missed_targets", "print_tables", "proportional_megabytes"]
