"""The language models of McMahan et al. 2017: symbols (batch x time) in, at every step logits of the next out."""

from __future__ import annotations

from torch import nn

from fedarena.config.errors import ModelMismatch
from fedarena.config.registry import register
from fedarena.models.zoo.layers import LSTM, Shape


@register("model", "char_lstm", paper="McMahan et al. 2017, arXiv:1602.05629")
def char_lstm(shape: Shape, classes: int, *, peephole: bool = False) -> nn.Module:
    """Next character: embedding of 8, two LSTM layers of 256.

    With `peephole` and 258 symbols it has the 866,578 parameters that the paper prints.
    """
    _text("char_lstm", shape)
    layers = [LSTM(8, 256, peephole=peephole), LSTM(256, 256, peephole=peephole)]
    return nn.Sequential(nn.Embedding(classes, 8), *layers, nn.Linear(256, classes))


@register("model", "word_lstm", paper="McMahan et al. 2017, arXiv:1602.05629")
def word_lstm(shape: Shape, classes: int, *, peephole: bool = False) -> nn.Module:
    """Next word: embedding of 192, one LSTM layer of 256.

    With `peephole` and 10,000 words it has the 4,950,544 parameters that the paper prints.
    """
    _text("word_lstm", shape)
    return nn.Sequential(nn.Embedding(classes, 192), LSTM(192, 256, peephole=peephole), nn.Linear(256, classes))


def _text(model: str, shape: Shape) -> None:
    if len(shape) != 1:
        raise ModelMismatch(
            f"{model} needs texts (one symbol a position), these rows have the shape {' x '.join(map(str, shape))}",
            remedy="use cnn_mcmahan or cnnnet for images",
            where="model.name",
        )
