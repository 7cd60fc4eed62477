"""Data sets and where they come from, partitions of their samples among clients, folds, and test sets of clients."""
