"""One thread for torch: two are slower on models this small, and change the bits."""

import torch

torch.set_num_threads(1)
