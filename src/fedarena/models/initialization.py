"""Initial weights other than torch's own: the defaults of Keras, which Nilsson et al. 2018 start from."""

from __future__ import annotations

from torch import nn

from fedarena.models.zoo.layers import LSTM


def glorot(module: nn.Module) -> None:
    """Initialize the weights as Keras does, from torch's current generator; unknown layers stay as they are.

    Linear and convolution: Glorot uniform, biases zero. LSTM: Glorot uniform for inputs, orthogonal for the
    recurrence, biases zero but one for the forget gate, peepholes closed. Embedding: uniform in -0.05..0.05.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Embedding):
            nn.init.uniform_(layer.weight, -0.05, 0.05)
        elif isinstance(layer, LSTM | nn.LSTM):
            _glorot_lstm(layer)


def _glorot_lstm(layer: LSTM | nn.LSTM) -> None:
    for name, weight in layer.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(weight)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(weight)
        else:
            nn.init.zeros_(weight)
        if name.startswith("bias_ih"):
            hidden = len(weight) // 4
            nn.init.ones_(weight.data[hidden : 2 * hidden])  # gates stand in the order i, f, g, o
