"""A hospital: its half of the algorithm is fedarena's, its evaluation is its own."""

from __future__ import annotations

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedarena.integrations import flower
from hospitals.task import net, rows

app = ClientApp()


def mine(context: Context) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """This hospital's rows."""
    return rows(int(context.node_config["partition-id"]), int(context.run_config["hospitals"]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Whatever the strategy's algorithm asks of a client."""
    x, y, _, _ = mine(context)
    return flower.train(message, context, net(), x, y)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """As in any Flower app."""
    _, _, x, y = mine(context)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    seen = MetricRecord({"accuracy": right, "num-examples": len(x)})
    return Message(RecordDict({"metrics": seen}), reply_to=message)
