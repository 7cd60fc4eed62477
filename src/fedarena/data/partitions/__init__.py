"""Partitions of samples among clients: the registry imports every module of this package, which registers them."""
