"""Five clients, skewed data: is it worth training together?  `make demo` runs this.

FedAvg against its two natural rivals on the digits that come with scikit-learn: all rows in one place (what nobody may
do), and every client alone (what everybody can do). Same partition, same initial weights, same number of epochs.
"""

from __future__ import annotations

from pathlib import Path

import fedarena as fa
from fedarena.data.statistics import statistics
from fedarena.engine.federation import deal
from fedarena.results.partition_plots import plot_partition
from fedarena.results.tables import show_partition, show_runs

HERE = Path("demo")
EXPERIMENT = {
    "data": "digits",
    "clients": 5,
    "partition": {"name": "label_dirichlet", "beta": 0.2},
    "rounds": 40,
    "local": {"lr": 0.1, "epochs": 1, "batch": 16},
    "evaluate": {"target": 0.9},
}
RIVALS = ("fedavg", "centralized", "local")  # together, all rows in one place, every client alone


def main() -> None:
    HERE.mkdir(exist_ok=True)
    number = len(list(HERE.glob("run-*-fedavg"))) + 1
    experiment = fa.Experiment.make(EXPERIMENT)
    data, partition = deal(experiment)
    print("\nFive clients, ten digits, and hardly anyone sees them all:\n")
    show_partition(experiment, statistics(data, partition))
    plot_partition(data, partition, HERE / "partition.png")

    runs = {}
    for algorithm in RIVALS:
        folder = HERE / f"run-{number}-{algorithm}"
        runs[algorithm] = fa.run(experiment, algorithm=algorithm, out=folder, progress=True)
    (HERE / "digits.toml").write_text(runs["fedavg"].experiment.to_toml())
    fa.draw_curves(runs, HERE / "curves.png", title="digits, 5 clients, strong label skew")

    print()
    show_runs(runs)
    print("\nPictures      demo/curves.png, demo/partition.png")
    print(f"Run folders   {', '.join(str(run.dir) for run in runs.values())}")
    bin_ = ".venv/bin/" if Path(".venv/bin/fedarena").exists() else ""
    print("\nWhat to type next:")
    print(f"  {bin_}fedarena verify {runs['fedavg'].dir}    # the same bits again?")
    print(f"  {bin_}fedarena run demo/digits.toml --set algorithm=scaffold    # does another algorithm do better?")
    print(f"  {bin_}fedarena data show demo/digits.toml --set partition.beta=0.05 --plot skew.png")
    print(f"  {bin_}fedarena list algorithms\n")


if __name__ == "__main__":
    main()
