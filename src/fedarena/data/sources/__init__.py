"""The data sets of the package, and files and arrays of users. Importing this package registers them all."""

from fedarena.data.sources.images import Cifar10, Digits, FashionMnist, Mnist
from fedarena.data.sources.in_memory import Arrays
from fedarena.data.sources.synthetic import LeastSquaresData
from fedarena.data.sources.table_files import BreastCancer, Csv, HeartDisease, Parquet
from fedarena.data.sources.text import Lines, TinyShakespeare

# Data of users under the names that experiment files use: run(csv("mine.csv", label="ill"), ...)
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
