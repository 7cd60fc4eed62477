"""The built-in models: importing this package registers them all.

A model is a function of the shape of one row and the number of classes (or symbols); its keywords are its settings.
Wherever possible it returns one flat `nn.Sequential` of standard layers.

>>> sum(w.numel() for w in cnnnet((3, 32, 32), 10, norm="bn").parameters())
541318
>>> char_lstm((80,), 258)
Sequential(
  (0): Embedding(258, 8)
  (1): LSTM(8, 256)
  (2): LSTM(256, 256)
  (3): Linear(in_features=256, out_features=258, bias=True)
)
"""

from fedarena.models.zoo.cifar_report import allconvnet, cnnnet, lenet5_mod
from fedarena.models.zoo.convex import least_squares, piecewise_quadratic
from fedarena.models.zoo.dense import logreg, mlp_2nn
from fedarena.models.zoo.lenet import lenet, lenet5
from fedarena.models.zoo.mcmahan import cnn_mcmahan, cnn_mcmahan_cifar
from fedarena.models.zoo.niid_bench import simple_cnn, simple_cnn_mnist
from fedarena.models.zoo.recurrent import char_lstm, word_lstm
from fedarena.models.zoo.resnet import resnet18

__all__ = [
    "allconvnet",
    "char_lstm",
    "cnn_mcmahan",
    "cnn_mcmahan_cifar",
    "cnnnet",
    "least_squares",
    "lenet",
    "lenet5",
    "lenet5_mod",
    "logreg",
    "mlp_2nn",
    "piecewise_quadratic",
    "resnet18",
    "simple_cnn",
    "simple_cnn_mnist",
    "word_lstm",
]
