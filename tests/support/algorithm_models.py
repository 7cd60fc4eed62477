"""The smallest model that each algorithm can train."""


def smallest_model(algorithm: str) -> str:
    """Return `logreg`, or a network for algorithms that compare representations."""
    return "mlp_2nn" if algorithm in ("moon", "fedproto") else "logreg"
