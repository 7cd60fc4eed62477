"""The server app: a strategy of fedarena takes the place of a strategy of Flower."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedarena.integrations.flower import Strategy
from hospitals.task import net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and save the model in the folder in which the server was started."""
    config = context.run_config
    local = {"lr": 0.1, "epochs": 1, "batch": 16}
    strategy = Strategy(net(), config["algorithm"], min_nodes=int(config["hospitals"]), local=local)
    result = strategy.start(grid, num_rounds=int(config["rounds"]))
    print(
        "accuracy of each round:",
        [round(float(seen["accuracy"]), 4) for seen in result.evaluate_metrics_clientapp.values()],
    )
