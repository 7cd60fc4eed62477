"""The documented name of `fedarena.integrations.flower`."""

from fedarena.integrations.flower import Strategy, train, wait_for_nodes

__all__ = ["Strategy", "train", "wait_for_nodes"]
