"""Decode published tables in text form: numbers as they are, words as codes in sorted order."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ADULT = (
    "age", "type_employer", "fnlwgt", "education", "education_num", "marital", "occupation", "relationship", "race", "sex",
    "capital_gain", "capital_loss", "hr_per_week", "country",
)  # fmt: skip
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")  # clients 0 to 5 of Fed-TCGA-BRCA
SITES = ("Canada", "Europe", "Midwest", "Northeast", "Other", "South", "West")

Arrays = Mapping[str, NDArray[Any]]
Files = Mapping[str, bytes]


def decode_adult(files: Files) -> Arrays:
    """Decode UCI Adult: 14 columns and the income; rows with an unknown value, written `?`, are left out."""
    lines = _lines(files["adult.data"])
    rows = [line for line in lines if len(line) == 15 and "?" not in line and line[0] != "age"]
    return _encoded(rows, ADULT) | {"y": np.array([row[14].startswith(">50K") for row in rows], np.int8)}


def decode_bank(files: Files) -> Arrays:
    """Decode UCI Bank Marketing, with commas or semicolons between values, and yes and no as words or letters."""
    text = files["bank-full.csv"].decode("utf-8-sig")
    header, *rows = _lines(text.encode(), ";" if ";" in text[:200] else ",")
    short = [[{"yes": "Y", "no": "N"}.get(word, word) for word in row] for row in rows if row]
    return _encoded(short, header[:16]) | {"y": np.array([row[16] == "Y" for row in short], np.int8)}


def decode_housing(files: Files) -> Arrays:
    """Decode the California housing table with its column of the distance to the ocean; an empty value is missing."""
    header, *rows = _lines(files["housing.csv"])
    rows = [row for row in rows if row]
    at = header.index("median_house_value")
    without = [[word for i, word in enumerate(row) if i != at] for row in rows]
    names = [name for i, name in enumerate(header) if i != at]
    return _encoded(without, names) | {"y": np.array([float(row[at]) for row in rows], np.float32)}


def decode_tcga_brca(files: Files) -> Arrays:
    """Decode Fed-TCGA-BRCA: 39 features, event and time of each patient, and the part and region of the division."""
    header, *rows = _lines(files["brca.csv"])
    parts = {row[0]: row[2] for row in _lines(files["train_test_split.csv"])[1:] if row}
    known = [row for row in rows if row and row[0] in parts]
    part, region = zip(*(parts[row[0]].split("_") for row in known), strict=True)
    return {
        "X": np.array([row[1:40] for row in known], np.float32),
        "event": np.array([float(row[40]) for row in known], np.int8),
        "time": np.array([float(row[41]) for row in known], np.float32),
        "site": np.array([SITES.index(REGIONS[int(k)]) for k in region], np.int8),
        "site_names": np.array(SITES),
        "test": np.array(part) == "test",
        "feature_names": np.array(header[1:40]),
    }


def _lines(raw: bytes, separator: str = ",") -> list[list[str]]:
    text = io.StringIO(raw.decode("utf-8-sig"), newline="")
    return [[word.strip() for word in line] for line in csv.reader(text, delimiter=separator)]


def _encoded(rows: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the columns as numbers, those of words as codes, with the names of the words."""
    x, levels, categorical = np.empty((len(rows), len(names)), np.float32), {}, []
    for i, name in enumerate(names):
        words = np.array([row[i] for row in rows])
        try:
            x[:, i] = [float(word) if word else np.nan for word in words.tolist()]
            categorical.append(False)
        except ValueError:
            levels[f"levels_{name}"], codes = np.unique(words, return_inverse=True)
            x[:, i] = codes.reshape(-1)
            categorical.append(True)
    return {"X": x, "feature_names": np.array(names), "categorical": np.array(categorical), **levels}
