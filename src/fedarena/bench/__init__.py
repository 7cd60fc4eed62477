"""How fast is it? Everything is measured as ratios in one run, on made-up data of the right shape.

works.py says what is measured and what is promised, designs.py and flower.py who does it, turns.py how they take turns,
machine.py what the machine gives, tables.py how it looks. rounds.py, population.py and scale.py (with costs.py, days.py and
places.py) are suites, as is bench/vertical.py; suites.py knows them all.
"""

from fedarena.bench.machine import proportional_megabytes
from fedarena.bench.suites import broken, measure, print_tables

__all__ = ["broken", "measure", "print_tables", "proportional_megabytes"]
