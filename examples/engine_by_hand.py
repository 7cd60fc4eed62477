"""One federated experiment from its pieces, without `fa.run`: data, partition, model, algorithm, runtime, loop.

`python examples/engine_by_hand.py` prints one line a round. The steps are those of docs/architecture.md, and the weights
are, bit for bit, those of `fa.run` with the same experiment.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import fedarena as fa
from fedarena.data.partition_statistics import statistics
from fedarena.engine.async_loop import open_loop
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.context import ExperimentContext
from fedarena.engine.setup import build_model_and_algorithm, partition_data
from fedarena.models.task import sha256
from fedarena.runtimes.serial import SerialRuntime


def main(rounds: int = 10) -> str:
    """Train FedProx on ten skewed clients and return the hash of the final weights."""
    # 1. The experiment: one frozen, validated value. Every component is an object behind a name.
    experiment = fa.Experiment.make(
        "digits",
        partition={"name": "label_dirichlet", "beta": 0.3},
        model="mlp_2nn",
        algorithm=fa.FedProx(mu=0.1),
        clients=10,
        share=0.5,
        rounds=rounds,
    )

    # 2. The data, and which client owns which samples.
    data, partition = partition_data(experiment)
    facts = statistics(data, partition)
    print(f"{data.n_train} training samples, {facts.rows_min} to {facts.rows_max} per client, L1 distance {facts.l1:.2f}")

    # 3. The context: data and partition with the model and the algorithm, checked against each other.
    context = build_model_and_algorithm(ExperimentContext(experiment, data, partition))
    print(f"{context.task.size:,} parameters, {context.task.path} path, {context.algorithm}")

    # 4. The loop: a runtime runs the tasks of clients, a store saves the state after each round.
    with tempfile.TemporaryDirectory() as folder:
        runtime = SerialRuntime(context)
        store = CheckpointStore(Path(folder) / "checkpoint", context.algorithm)
        loop = open_loop(context, runtime, store)
        for record in loop.rounds():  # the loop is yours: stop it, plot it, change nothing
            print(f"round {record.round:2}  accuracy {record.accuracy:.3f}  {record.bytes_up / 1e6:.1f} MB up")
        store.close()
        runtime.close()

    # 5. The result: the state of the server is a value.
    return sha256(*loop.result_vectors())


if __name__ == "__main__":
    print("weights sha256", main()[:16])
