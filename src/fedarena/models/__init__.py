"""Models as loss and gradient of one flat vector: any torch module, the compiled kernels and the tape for known layers,
and trees of arrays (messages and states). Algorithms and training loops do not belong here."""
