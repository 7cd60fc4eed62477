"""The AUC table of vertical boosting: XGBoost on pooled data, SecureBoost and SecureBoost+ beside published values.

    FEDARENA_DATA=folder python examples/secureboost_auc.py [--trees 25] [--cipher paillier]

Needs give_me_some_credit.npz and higgs_11k.npz in the data folder. The published table (Chen et al., arXiv 2110.10927,
quoted in figure 6 of Khitrov and Harth-Kitzerow, "Accuracy Tradeoffs of Federated Learning approaches") is about the whole
of Higgs, and about Susy and Epsilon, which are not in the folder. Its number of trees, its rows for evaluation and its
split of columns are not known to us; ours are printed above the table. The trees do not depend on the cipher, which is
why the default is none: the table takes a minute or two, with real encryption an hour.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from fedarena.config.seeds import stream
from fedarena.statistics.metrics import auc
from fedarena.vertical.party_tables import load_table
from fedarena.vertical.pooled_check import check_pooled
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.simulation import simulate

PUBLISHED = {  # XGBoost, SecureBoost, SecureBoost+
    "give_me_some_credit": ("0.872", "0.874", "0.873"),
    "higgs_11k": ("0.808", "0.806", "0.8"),
}
ELSEWHERE = {"susy": ("0.864", "0.873", "0.873"), "epsilon": ("0.897", "0.897", "0.894")}


def measured(name: str, trees: int, cipher: str) -> list[str]:
    """Return one row of the table: AUC on the held-out fifth of the rows, and on the training rows."""
    table = load_table(name)
    owner = np.array(table.parties)
    tables = [table.x[:, owner == "guest"], table.x[:, owner != "guest"]]
    training = stream(0, "split").random(len(table)) >= 0.2
    found = []
    for algorithm in ("secureboost", "secureboost_plus"):
        settings = BoostSettings(algorithm=algorithm, trees=trees)
        model = simulate(
            tables, table.y, settings, training=training, cipher=cipher, on_tree=lambda r: print(r, file=sys.stderr)
        )
        check = check_pooled(model, tables, table.y, training=training)
        assert check.splits_equal, f"{name}: {check}"
        found.append(check.value)
    ours = [f"{check.pooled:.4f}", *(f"{value:.4f}" for value in found)]
    ours.append(f"{auc(table.y[training], model.margins[training, 0]):.4f}")
    size = f"{training.sum():,} + {(~training).sum():,} x ({tables[0].shape[1]} + {tables[1].shape[1]})"
    return [name, size, *PUBLISHED[name], *ours, f"{check.equal} of {check.splits}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="AUC of vertical boosting beside published values")
    parser.add_argument("--trees", type=int, default=25)
    parser.add_argument("--cipher", default="none", choices=["paillier", "none"])
    options = parser.parse_args()
    print(f"{BoostSettings(trees=options.trees)}, a fifth of the rows held out, cipher {options.cipher}\n")
    heads = ["data", "rows x columns", "XGB", "SB", "SB+", "our XGB", "our SB", "our SB+", "on training rows"]
    heads += ["splits equal"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for name in PUBLISHED:
        print("| " + " | ".join(measured(name, options.trees, options.cipher)) + " |", flush=True)
    for name, values in ELSEWHERE.items():
        print("| " + " | ".join([name, "not here", *values, *["-"] * 5]) + " |")


if __name__ == "__main__":
    main()
