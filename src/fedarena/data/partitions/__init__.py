"""Partitions of samples among clients. Importing this package registers them all."""

from fedarena.data.partitions.dirichlet import ClientDirichlet, LabelDirichlet, QuantityDirichlet
from fedarena.data.partitions.features import FeatureNoise
from fedarena.data.partitions.iid import Iid, IidStratified
from fedarena.data.partitions.labels import ClassesPerClient, NonIid, NonIidEqual
from fedarena.data.partitions.multimodal import Multimodal
from fedarena.data.partitions.natural import Natural
from fedarena.data.partitions.shards import NilssonIid, NilssonNonIid, Shards

__all__ = [
    "ClassesPerClient",
    "ClientDirichlet",
    "FeatureNoise",
    "Iid",
    "IidStratified",
    "LabelDirichlet",
    "Multimodal",
    "Natural",
    "NilssonIid",
    "NilssonNonIid",
    "NonIid",
    "NonIidEqual",
    "QuantityDirichlet",
    "Shards",
]
