"""An algorithm with a loss of its own, one with a training loop of its own, and one whose clients have their own heads.

`python examples/own_loss.py` compares them with FedAvg on ten clients with skewed labels; docs/own-loss.md explains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

import fedarena as fa


@dataclass(frozen=True)
class Distilled(fa.FedAvg):
    """FedAvg whose clients also learn from the server's model: cross-entropy + gamma KL(server || client)."""

    gamma: float = 0.5

    def client(self, message: fa.Model, client_state: None, work: fa.Work) -> fa.Reply:
        """Train with the loss below; optimizer, rates and batches are those of the experiment."""
        out = work.train(message.w, loss=self.loss)
        return fa.Reply(fa.Step(message.w - out.w), weight=work.rows)

    def loss(self, module: Any, batch: Any, context: Any) -> torch.Tensor:
        """Return the mean loss of a batch; `context.start` is the server's model, frozen."""
        x, y = batch
        logits = module(x)
        student, teacher = F.log_softmax(logits, dim=1), F.log_softmax(context.start(x), dim=1)
        return F.cross_entropy(logits, y) + self.gamma * F.kl_div(student, teacher, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class ByHand(fa.FedAvg):
    """FedAvg with a training loop of its own: sign-SGD, one epoch."""

    def client(self, message: fa.Model, client_state: None, work: fa.Work) -> fa.Reply:
        """Train the torch module; `work.batches()` counts steps and samples, `work.lr` is the rate of the current step."""
        module = work.load(message.w)
        for x, y in work.batches():
            module.zero_grad()
            F.cross_entropy(module(x), y).backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.02 * work.lr * parameter.grad.sign()
        return fa.Reply(fa.Step(message.w - work.weights), weight=work.rows)


@dataclass(frozen=True)
class OwnHeads(fa.FedAvg):
    """A common representation and a last layer for each client, which never leaves it."""

    head: str = "5.*"  # names of the parameters of the last layer
    personal: ClassVar[bool] = True  # evaluate each client by its own model, the one that it keeps

    def remember(self, w: np.ndarray) -> np.ndarray:
        """Return a client's own model before its first round."""
        return w

    def client(self, message: fa.Model, own: np.ndarray, work: fa.Work) -> fa.Reply:
        """Train the common layers below the client's own head; send the layers, keep the model."""
        is_head = work.mask(self.head)
        out = work.train(np.where(is_head, own, message.w))
        step = np.where(is_head, np.zeros_like(own), message.w - out.w)
        return fa.Reply(fa.Step(step), keep=out.w, weight=work.rows)


ALGORITHMS = {"fedavg": "fedavg", "distilled": Distilled(), "by hand": ByHand(), "own heads": OwnHeads()}


def main(rounds: int = 5, seeds: int = 3) -> fa.Comparison:
    """Compare the three with FedAvg on clients' own test samples, print the scores and return the comparison."""
    found = fa.compare(
        "digits",
        ALGORITHMS,
        partition={"name": "label_dirichlet", "beta": 0.1},
        rounds=rounds,
        seeds=seeds,
        evaluate_on="own",
        baseline=False,
        out=False,
    )
    print(found.to_pandas().pivot_table("score", "algorithm", sort=False).round(3))
    return found


if __name__ == "__main__":
    main()
