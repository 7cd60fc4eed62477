"""Vertical federated boosting: parties hold different columns about the same people."""
