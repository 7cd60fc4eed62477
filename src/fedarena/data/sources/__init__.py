"""The data sets of the package, and files and arrays of users: the registry imports every module, which registers them."""

from fedarena.data.sources.in_memory import Arrays
from fedarena.data.sources.table_files import Csv, Parquet
from fedarena.data.sources.text import Lines

# Data of users under the names that experiment files use: run(csv("mine.csv", label="ill"), ...)
arrays, csv, lines, parquet = Arrays, Csv, Lines, Parquet
