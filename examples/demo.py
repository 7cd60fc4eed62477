"""Ten clients, skewed data: which algorithm should they use?  `make demo` runs this.

Six federated algorithms on the digits that come with scikit-learn, and two baselines: all rows in one place, and every
client alone. The same folds, clients, schedules and initial weights for all, then a Bayesian comparison, and a report.
"""

from __future__ import annotations

from pathlib import Path

import fedarena as fa
from fedarena.data.partition_statistics import statistics
from fedarena.engine.setup import partition_data
from fedarena.reports.terminal_tables import show_comparison, show_partition

HERE = Path("demo")
EXPERIMENT = {
    "data": "digits",
    "clients": 10,
    "partition": {"name": "label_dirichlet", "beta": 0.2},
    "share": 0.5,
    "rounds": 30,
    "local": {"lr": 0.1, "epochs": 2, "batch": 16},
    "evaluate": {"every": 2, "target": 0.9},
}
FEDERATED = ("fedavg", "fedprox:mu=0.1", "scaffold", "fednova", "fedavgm:beta=0.9", "fedbuff")
BASELINES = ("centralized", "local")  # all rows in one place, every client alone


def main() -> None:
    HERE.mkdir(exist_ok=True)
    number = len(list(HERE.glob("comparison-*"))) + 1
    experiment = fa.Experiment.make(EXPERIMENT)
    (HERE / "digits.toml").write_text(experiment.to_toml())
    print("\nTen clients, ten digits, and hardly any client has all of them:\n")
    show_partition(experiment, statistics(*partition_data(experiment)))

    out, page = HERE / f"comparison-{number}", HERE / "report.html"
    result = fa.compare(experiment, [*FEDERATED, *BASELINES], folds=5, repeats=2, out=out, report=page, progress=True)
    print()
    show_comparison(result)
    bin_ = ".venv/bin/" if Path(".venv/bin/fedarena").exists() else ""
    print(f"\nThe report:  {page}")
    print("\nWhat to type next:")
    print(f"  {bin_}fedarena ui demo                                 # every run of it, in a browser")
    print(f"  {bin_}fedarena compare demo/digits.toml -a scaffold -a fedavg+fedir --folds 5")
    print(f"  {bin_}fedarena run demo/digits.toml --set algorithm=scaffold --set rounds=100")
    print(f"  {bin_}fedarena verify {out}/cells/scaffold/repeat0-fold0   # the same bits again?")
    print(f"  {bin_}fedarena list algorithms\n")


if __name__ == "__main__":
    main()
