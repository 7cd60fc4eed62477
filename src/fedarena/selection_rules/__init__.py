"""Rules that select the clients of a round: one paper, one file.

A rule goes with every algorithm that has rounds of selected clients (`select = { name = "oort" }`). The contract is in
`base`; measuring losses and durations, availability and checkpoints belong to the engine.
"""
