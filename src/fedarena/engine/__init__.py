"""The only training loop: rounds, local solver, participation, mean, checkpoints."""
