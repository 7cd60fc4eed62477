"""The data sets that come with the package; importing this registers them."""

from fedarena.data.sources.images import Cifar10, Digits, FashionMnist, Mnist
from fedarena.data.sources.in_memory import Arrays
from fedarena.data.sources.synthetic import LeastSquaresData
from fedarena.data.sources.table_files import BreastCancer, Csv, HeartDisease, Parquet
from fedarena.data.sources.text import Lines, TinyShakespeare

# Your own data under the names that files use: run(csv("mine.csv", label="ill"), ...)
arrays, csv, lines, parquet = Arrays, Csv, Lines, Parquet

__all__ = [
    "Arrays",
    "BreastCancer",
    "Cifar10",
    "Csv",
    "Digits",
    "FashionMnist",
    "HeartDisease",
    "LeastSquaresData",
    "Lines",
    "Mnist",
    "Parquet",
    "TinyShakespeare",
    "arrays",
    "csv",
    "lines",
    "parquet",
]
