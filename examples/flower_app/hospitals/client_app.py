"""The client app of a hospital: fedarena trains, the app evaluates."""

from __future__ import annotations

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedarena.integrations import flower
from hospitals.task import net, rows

app = ClientApp()


def mine(context: Context) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the rows of this hospital."""
    return rows(int(context.node_config["partition-id"]), int(context.run_config["hospitals"]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run the client half of the strategy's algorithm."""
    x, y, _, _ = mine(context)
    return flower.train(message, context, net(), x, y)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model as in any Flower app."""
    _, _, x, y = mine(context)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    seen = MetricRecord({"accuracy": right, "num-examples": len(x)})
    return Message(RecordDict({"metrics": seen}), reply_to=message)
