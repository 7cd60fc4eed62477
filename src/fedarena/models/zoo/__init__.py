"""The built-in models: the registry imports every module of this package, which registers them.

A model is a function of the shape of one row and the number of classes (or symbols); its keywords are its settings.
Wherever possible it returns one flat `nn.Sequential` of standard layers.

>>> from fedarena.models.zoo.cifar_report import cnnnet
>>> from fedarena.models.zoo.recurrent import char_lstm
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
