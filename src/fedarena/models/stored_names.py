"""Names that classes of stored states had in earlier versions: checkpoints are written with new names, read with both."""

from __future__ import annotations

RENAMED_CLASSES = {  # as written by earlier versions -> the class of today
    "Aged": "AsyncState",
    "Buffered": "FedBuffState",
    "Common": "Broadcast",
    "Controlled": "ScaffoldState",
    "Fair": "FedFAState",
    "Features": "FeatureCounts",
    "Judged": "LoAdaBoostState",
    "Known": "FSVRGState",
    "Leaning": "FedDynState",
    "Memory": "ClientState",
    "Moments": "FedOptState",
    "Moving": "MomentumState",
    "Paced": "CoLearningState",
    "Page": "FedPAGEState",
    "Sprung": "FedProxState",
}


def find_class(name: str, classes: dict[str, type]) -> type | None:
    """Return the class of a stored name among the given ones: that of this name, or the one it was renamed to.

    >>> class FedDynState: ...
    >>> find_class("Leaning", {"FedDynState": FedDynState}) is FedDynState
    True
    """
    return classes.get(name) or classes.get(RENAMED_CLASSES.get(name, ""))
