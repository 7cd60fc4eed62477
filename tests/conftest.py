"""For all tests: one thread for torch (two are slower on models this small, and change the bits), and examples of
hypothesis that a slow machine cannot fail. CI repeats the same examples; at a desk they are new every time."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
