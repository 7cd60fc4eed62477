"""The model zoo, number by number: counts, costs, shapes, and the identities its layers rest on."""

from __future__ import annotations

import copy
import doctest
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedarena.config.errors import BadValue, FedarenaError, ModelMismatch
from fedarena.config.registry import components, find
from fedarena.models import zoo
from fedarena.models.initialization import glorot
from fedarena.models.zoo.layers import LSTM, Norm, block, classifier, local_response_norm, same_max_pool

MNIST, CIFAR, CROP, DIGITS = (1, 28, 28), (3, 32, 32), (3, 24, 24), (1, 8, 8)
Model = tuple[str, tuple[int, ...], int, dict[str, Any]]  # name, shape of a row, classes, settings

SMALLEST = {
    "cnn_mcmahan": 4,
    "cnn_mcmahan_cifar": 1,
    "lenet5_mod": 16,
    "allconvnet": 27,
    "cnnnet": 8,
    "simple_cnn": 16,
    "simple_cnn_mnist": 16,
    "lenet": 16,
    "lenet5": 12,
    "resnet18": 1,
}

EVERY: list[Model] = [
    ("logreg", DIGITS, 10, {}),
    ("logreg", (30,), 2, {"binary": True}),
    ("mlp_2nn", (30,), 2, {}),
    ("cnn_mcmahan", DIGITS, 10, {}),
    ("cnn_mcmahan_cifar", CROP, 10, {}),
    ("cnn_mcmahan_cifar", DIGITS, 10, {"lrn": False}),
    ("lenet5_mod", CIFAR, 10, {}),
    ("lenet5_mod", CIFAR, 10, {"norm": "bn"}),
    ("allconvnet", CIFAR, 10, {"relu_logits": False}),
    ("allconvnet", MNIST, 10, {"norm": "gn", "channels": 8}),
    ("cnnnet", CIFAR, 10, {}),
    ("cnnnet", DIGITS, 10, {"norm": "bn"}),
    ("cnnnet", CIFAR, 10, {"norm": "gn"}),
    ("simple_cnn", CIFAR, 10, {}),
    ("simple_cnn_mnist", MNIST, 10, {}),
    ("lenet", MNIST, 10, {}),
    ("lenet5", MNIST, 10, {}),
    ("char_lstm", (6,), 20, {}),
    ("char_lstm", (6,), 20, {"peephole": True}),
    ("word_lstm", (6,), 20, {}),
    ("word_lstm", (6,), 20, {"peephole": True}),
    ("resnet18", DIGITS, 10, {}),
    ("resnet18", DIGITS, 10, {"stem": "imagenet", "norm": "gn"}),
]
every_model = pytest.mark.parametrize("model", EVERY, ids=lambda m: "-".join([m[0], *map(str, m[3].values())]))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads of a busy machine wait for each other at every small layer: ten times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(name: str, shape: tuple[int, ...], classes: int = 10, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    make: Callable[..., nn.Module] = find("model", name).build(settings)
    return make(shape, classes)


def rows(name: str, shape: tuple[int, ...], classes: int, number: int = 8) -> tuple[Tensor, Tensor]:
    """A fixed batch: inputs and labels."""
    draw = torch.Generator().manual_seed(1)
    if name.endswith("_lstm"):
        symbols = torch.randint(classes, (number, shape[0] + 1), generator=draw)
        return symbols[:, :-1], symbols[:, 1:]
    return torch.rand(number, *shape, generator=draw), torch.randint(classes, (number,), generator=draw)


def count(module: nn.Module) -> int:
    return sum(w.numel() for w in module.parameters())


def loss_of(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x).flatten(0, -2), y.flatten())


def macs(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of one row, counted while it passes."""
    total = 0

    def listen(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        total += output.numel() * layer.weight[0].numel()

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(listen)
    module(torch.zeros(1, *shape))
    return total


# Counts and costs (docs/reference/models.md#overview)


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "multiply_adds", "megabytes"),
    [
        ("logreg", MNIST, 7_850, 7_840, "0.031"),
        ("mlp_2nn", MNIST, 199_210, 198_800, "0.797"),
        ("cnn_mcmahan", MNIST, 1_663_370, 12_273_152, "6.65"),
        ("cnn_mcmahan_cifar", CROP, 1_068_298, 18_470_784, "4.27"),
        ("lenet5_mod", CIFAR, 797_962, 14_693_248, "3.19"),
        ("allconvnet", CIFAR, 610_058, 60_571_392, "2.44"),
        ("cnnnet", CIFAR, 541_094, 3_318_664, "2.16"),
        ("simple_cnn", CIFAR, 62_006, 651_720, "0.248"),
        ("simple_cnn_mnist", MNIST, 44_426, 281_640, "0.178"),
        ("lenet", MNIST, 431_080, 2_293_000, "1.72"),
        ("lenet5", (1, 32, 32), 61_706, 416_520, "0.247"),
        ("lenet5", MNIST, 61_706, 416_520, "0.247"),
    ],
)
def test_parameters_multiply_adds_and_message_are_those_of_the_table(
    name: str, shape: tuple[int, ...], parameters: int, multiply_adds: int, megabytes: str
) -> None:
    module = build(name, shape)
    assert count(module) == parameters
    assert macs(module, shape) == multiply_adds
    message = sum(w.numel() * w.element_size() for w in module.parameters())
    assert message == 4 * parameters
    assert f"{message / 1e6:.{len(megabytes) - 2}f}" == megabytes


@pytest.mark.parametrize(
    ("name", "classes", "peephole", "parameters"),
    [
        ("char_lstm", 258, True, 866_578),  # printed
        ("char_lstm", 258, False, 865_042),
        ("char_lstm", 80, False, 8 * 80 + 271_360 + 525_312 + 257 * 80),
        ("word_lstm", 10_000, True, 4_950_544),  # printed
        ("word_lstm", 10_000, False, 4_950_544 - 3 * 256),
    ],
)
def test_recurrent_counts(name: str, classes: int, peephole: bool, parameters: int) -> None:
    assert count(build(name, (10,), classes, peephole=peephole)) == parameters


@pytest.mark.parametrize("norm", ["bn", "gn"])
@pytest.mark.parametrize(
    ("name", "channels", "parameters"),
    [("lenet5_mod", 128, 798_218), ("allconvnet", 842, 611_742), ("cnnnet", 112, 541_318)],
)
def test_a_norm_adds_two_parameters_a_channel(name: str, norm: str, channels: int, parameters: int) -> None:
    module = build(name, CIFAR, norm=norm)
    assert count(module) == parameters == count(build(name, CIFAR)) + 2 * channels
    layers = sum(isinstance(m, nn.BatchNorm2d) for m in module)  # type: ignore[attr-defined]
    assert sum(b.numel() for b in module.buffers()) == (2 * channels + layers if norm == "bn" else 0)


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_resnet18_counts(norm: str) -> None:
    assert count(build("resnet18", CIFAR, norm=norm)) == 11_173_962
    assert count(build("resnet18", CIFAR, norm=norm, stem="imagenet")) == 11_181_642


def test_valid_padding_misses_the_printed_count_of_cnn_mcmahan() -> None:
    assert count(classifier([*block(1, 32, 5), *block(32, 64, 5)], MNIST, [512, 10])) == 582_026


def test_the_class_convolution_may_go_without_a_norm() -> None:
    assert count(build("allconvnet", CIFAR, norm="gn", norm_logits=False)) == 611_742 - 2 * 10


# Norms


@pytest.mark.parametrize(("channels", "groups"), [(16, 8), (32, 16), (64, 32), (128, 32), (10, 5), (7, 1), (1, 1)])
def test_default_groups(channels: int, groups: int) -> None:
    (layer,) = Norm("gn")(channels)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


@pytest.mark.parametrize(("setting", "groups"), [({"groups": 2}, 2), ({"group_size": 4}, 4)])
def test_groups_as_set(setting: dict[str, int], groups: int) -> None:
    (layer,) = Norm("gn", **setting)(16)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "gn", "groups": 3}, "groups = 3 does not divide the 16 channels"),
        ({"norm": "gn", "group_size": 5}, "group_size = 5 does not divide the 16 channels"),
        ({"norm": "gn", "groups": 2, "group_size": 2}, "two answers"),
        ({"norm": "bn", "groups": 2}, "belong to group norm"),
        ({"norm": "layer"}, "norm = 'layer'"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"groups": 0}, "groups = 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        build("cnnnet", CIFAR, **settings)


def test_batch_norm_constants() -> None:
    (layer,) = Norm("bn")(16)
    assert isinstance(layer, nn.BatchNorm2d)
    assert (layer.eps, layer.momentum, layer.affine) == (1e-5, 0.1, True)


@pytest.mark.parametrize("name", ["lenet5_mod", "allconvnet", "cnnnet"])
def test_batch_norm_in_eval_mode_sees_one_row_at_a_time(name: str) -> None:
    module = build(name, CIFAR, norm="bn")
    x, _ = rows(name, CIFAR, 10)
    module(x)  # running statistics move away from 0 and 1
    module.eval()
    torch.testing.assert_close(module(x), torch.cat([module(x[:1]), module(x[1:])]))


@pytest.mark.parametrize("name", ["lenet5_mod", "allconvnet", "cnnnet"])
def test_group_norm_gives_a_row_the_same_output_alone_or_in_a_batch(name: str) -> None:
    module = build(name, CIFAR, norm="gn")
    x, _ = rows(name, CIFAR, 10)
    torch.testing.assert_close(module(x), torch.cat([module(x[:1]), module(x[1:])]))


# Every model


def test_every_registered_model_is_tested() -> None:
    built_in = {n for n, entry in components("model").items() if entry.make.__module__.startswith(zoo.__name__)}
    losses = {"least_squares", "piecewise_quadratic"}  # no networks, they have no output: tests/data/test_synthetic.py
    assert built_in - losses == {model[0] for model in EVERY}


@every_model
def test_output_shape(model: Model) -> None:
    name, shape, classes, settings = model
    x, y = rows(name, shape, classes)
    assert build(name, shape, classes, **settings)(x).shape == (*y.shape, classes)


@every_model
def test_same_seed_same_weights(model: Model) -> None:
    name, shape, classes, settings = model
    first, second = (build(name, shape, classes, **settings).state_dict() for _ in range(2))
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)


@every_model
def test_one_step_of_sgd_lowers_the_loss(model: Model) -> None:
    name, shape, classes, settings = model
    module, (x, y) = build(name, shape, classes, **settings), rows(name, shape, classes)
    before = loss_of(module, x, y)
    weights = list(module.parameters())
    gradients = torch.autograd.grad(before, weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=0.01)
        assert loss_of(module, x, y) < before


@every_model
def test_models_are_flat_and_start_in_training_mode(model: Model) -> None:
    name, shape, classes, settings = model
    module = build(name, shape, classes, **settings)
    assert type(module) is nn.Sequential
    assert not any(isinstance(layer, nn.Sequential) for layer in module)
    assert all(layer.training for layer in module.modules())


def test_building_a_model_leaves_no_trace_in_its_statistics() -> None:
    module = build("cnnnet", CIFAR, norm="bn")
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.num_batches_tracked == 0
            assert torch.equal(layer.running_mean, torch.zeros(layer.num_features))  # type: ignore[arg-type]


def test_parameters_stand_in_the_order_of_the_layers() -> None:
    sizes = [tuple(w.shape) for w in build("cnnnet", CIFAR, norm="gn").parameters()]
    blocks = [size for i, o in [(3, 16), (16, 32), (32, 64)] for size in [(o, i, 3, 3), (o,), (o,), (o,)]]
    assert sizes == [*blocks, (500, 1024), (500,), (10, 500), (10,)]


def test_the_example_of_the_package_runs() -> None:
    assert doctest.testmod(zoo).failed == 0


# Fit to the data


@pytest.mark.parametrize(("name", "least"), SMALLEST.items())
def test_the_smallest_image_is_the_smallest(name: str, least: int) -> None:
    module = build(name, (1, least, least)).eval()
    assert module(torch.zeros(2, 1, least, least)).shape == (2, 10)
    if least > 1:
        with pytest.raises(ModelMismatch, match=f"{name} needs images of at least {least} x {least}"):
            build(name, (1, least, least - 1))


@pytest.mark.parametrize("name", [n for n, least in SMALLEST.items() if least <= 8])
def test_images_need_not_be_square(name: str) -> None:
    assert build(name, (2, 9, 14)).eval()(torch.zeros(3, 2, 9, 14)).shape == (3, 10)


def test_a_small_image_is_refused_with_a_remedy() -> None:
    with pytest.raises(ModelMismatch) as error:
        build("lenet5_mod", DIGITS)
    assert error.value.what == "lenet5_mod needs images of at least 16 x 16, these are 1 x 8 x 8"
    assert error.value.remedy == "use mlp_2nn, logreg or cnn_mcmahan"


@pytest.mark.parametrize(
    ("name", "shape", "settings", "message"),
    [
        *[(name, (30,), {}, "needs images") for name in SMALLEST],
        ("char_lstm", DIGITS, {}, "needs texts"),
        ("word_lstm", DIGITS, {}, "needs texts"),
        ("logreg", DIGITS, {"binary": True}, "needs 2 classes, these data have 10"),
    ],
)
def test_rows_of_the_wrong_kind_are_refused(
    name: str, shape: tuple[int, ...], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedarenaError, match=message) as error:
        build(name, shape, **settings)
    assert isinstance(error.value, ModelMismatch)
    assert error.value.remedy


# Layers


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("cnnnet", {"norm": "plain"}),
        ("cnnnet", {"norm": "bn"}),
        ("cnnnet", {"norm": "gn"}),
        ("lenet5_mod", {"norm": "bn"}),
        ("cnn_mcmahan", {}),
        ("cnn_mcmahan_cifar", {"lrn": True}),
        ("cnn_mcmahan_cifar", {"lrn": False}),
    ],
)
def test_pool_before_activation_equals_the_printed_order(name: str, settings: dict[str, Any]) -> None:
    ours = build(name, CIFAR, **settings).double()
    layers = list(copy.deepcopy(ours).children())
    for i in range(len(layers) - 1):
        if isinstance(layers[i], nn.MaxPool2d) and isinstance(layers[i + 1], nn.ReLU | nn.ELU):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    printed = nn.Sequential(*layers)
    assert [type(m) for m in printed] != [type(m) for m in ours.children()]

    x = torch.randn(4, *CIFAR, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    y = torch.arange(4)
    torch.testing.assert_close(ours(x), printed(x))
    gradients = [torch.autograd.grad(loss_of(m, x, y), list(m.parameters())) for m in (ours, printed)]
    torch.testing.assert_close(*gradients)


def test_dropout_stands_before_both_fully_connected_layers() -> None:
    layers = list(build("cnnnet", CIFAR, dropout=0.25).children())
    assert [type(layers[i + 1]) for i, m in enumerate(layers) if isinstance(m, nn.Dropout)] == [nn.Linear] * 2
    assert not any(isinstance(m, nn.Dropout) for m in build("cnnnet", CIFAR).children())


def test_relu_logits_are_never_negative_and_can_die() -> None:
    x, y = rows("allconvnet", CIFAR, 10)
    module = build("allconvnet", CIFAR)
    assert module(x).min() >= 0
    assert build("allconvnet", CIFAR, relu_logits=False)(x).min() < 0
    classes = [m for m in module.children() if isinstance(m, nn.Conv2d)][-1]
    assert classes.bias is not None
    nn.init.constant_(classes.bias, -100.0)
    loss = loss_of(module, x, y)
    assert loss.item() == pytest.approx(math.log(10))
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, list(module.parameters())))


def test_allconvnet_averages_maps_of_2_by_2() -> None:
    module = build("allconvnet", CIFAR)
    assert isinstance(module, nn.Sequential)
    assert module[:-2](torch.zeros(1, *CIFAR)).shape == (1, 10, 2, 2)


def test_binary_logistic_regression_has_the_logistic_loss() -> None:
    module = build("logreg", (30,), 2, binary=True)
    x, y = rows("logreg", (30,), 2)
    out = module(x)
    assert count(module) == 31
    assert not out[:, 0].any()
    margin = (2 * y - 1) * out[:, 1]
    torch.testing.assert_close(loss_of(module, x, y), F.softplus(-margin).mean())


def test_response_norm_follows_tensorflow() -> None:
    """x / (bias + alpha * sum of squares over 4 channels to each side) ** beta, with alpha = 0.001 / 9 as it is."""
    x = 10 * torch.randn(2, 20, 3, 3, generator=torch.Generator().manual_seed(0))
    squares = torch.stack([(x[:, max(0, c - 4) : c + 5] ** 2).sum(dim=1) for c in range(20)], dim=1)
    torch.testing.assert_close(local_response_norm()(x), x / (1 + 0.001 / 9 * squares) ** 0.75)


@pytest.mark.parametrize("size", [(24, 24), (12, 12), (25, 25), (7, 10), (1, 1), (2, 3)])
def test_same_max_pool_follows_tensorflow(size: tuple[int, int]) -> None:
    """Output ceil(n / 2); total padding (ceil(n / 2) - 1) * 2 + 3 - n, the smaller half of it first."""
    x = torch.randn(1, 1, *size, generator=torch.Generator().manual_seed(0))
    padding = []
    for n in reversed(size):
        total = max(0, (math.ceil(n / 2) - 1) * 2 + 3 - n)
        padding += [total // 2, total - total // 2]
    expected = F.max_pool2d(F.pad(x, padding, value=-math.inf), 3, stride=2)
    assert expected.shape[2:] == tuple(math.ceil(n / 2) for n in size)
    assert torch.equal(same_max_pool(*size)(x), expected)


# Recurrence


def peephole_by_hand(cell: LSTM, x: Tensor) -> Tensor:
    """One gate at a time, as the equations read."""
    assert cell.peephole is not None
    w_i, w_f, w_g, w_o = cell.weight_ih.chunk(4)
    u_i, u_f, u_g, u_o = cell.weight_hh.chunk(4)
    b_i, b_f, b_g, b_o = cell.bias_ih.chunk(4)
    p_i, p_f, p_o = map(torch.diag, cell.peephole)
    outputs = []
    for row in x:
        h = c = torch.zeros(len(b_i), dtype=x.dtype)
        for x_t in row:
            i = torch.sigmoid(w_i @ x_t + u_i @ h + p_i @ c + b_i)
            f = torch.sigmoid(w_f @ x_t + u_f @ h + p_f @ c + b_f)
            c = f * c + i * torch.tanh(w_g @ x_t + u_g @ h + b_g)
            o = torch.sigmoid(w_o @ x_t + u_o @ h + p_o @ c + b_o)
            h = o * torch.tanh(c)
            outputs.append(h)
    return torch.stack(outputs).view(*x.shape[:2], -1)


def test_peephole_cell_follows_the_equations() -> None:
    torch.manual_seed(0)
    cell = LSTM(2, 3, peephole=True).double()
    x = torch.randn(2, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(cell(x), peephole_by_hand(cell, x))


def test_plain_cell_is_torchs_lstm_with_one_bias() -> None:
    torch.manual_seed(0)
    ours, theirs = LSTM(5, 7), nn.LSTM(5, 7, batch_first=True)
    weights = {f"{name}_l0": weight for name, weight in ours.state_dict().items()}
    theirs.load_state_dict({**weights, "bias_hh_l0": torch.zeros(28)})
    x = torch.randn(3, 6, 5)
    torch.testing.assert_close(ours(x), theirs(x)[0])
    assert count(theirs) == count(ours) + 4 * 7


def test_closed_peepholes_make_a_plain_cell() -> None:
    torch.manual_seed(0)
    plain, peeping = LSTM(5, 7), LSTM(5, 7, peephole=True)
    peeping.load_state_dict({**plain.state_dict(), "peephole": torch.zeros(3, 7)})
    x = torch.randn(3, 6, 5)
    torch.testing.assert_close(plain(x), peeping(x))


@pytest.mark.slow
@pytest.mark.parametrize("peephole", [False, True])
def test_a_text_model_looks_back_only_and_forgets_between_rows(peephole: bool) -> None:
    module = build("char_lstm", (6,), 20, peephole=peephole)
    x, _ = rows("char_lstm", (6,), 20)
    out = module(x)
    torch.testing.assert_close(module(x), out)
    torch.testing.assert_close(module(x[:, :3]), out[:, :3])
    torch.testing.assert_close(module(x[2:3]), out[2:3])


# Keras's initial weights


def test_glorot_draws_within_its_bounds_and_zeroes_biases() -> None:
    module = build("cnnnet", CIFAR, norm="bn")
    glorot(module)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            window = layer.weight[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
            fans = sum(layer.weight.shape[:2]) * window
            bound = math.sqrt(6 / fans)
            assert 0.95 * bound < layer.weight.abs().max() <= bound
            assert layer.bias is not None
            assert not layer.bias.any()
        if isinstance(layer, nn.BatchNorm2d):
            assert torch.equal(layer.weight, torch.ones(layer.num_features))


@pytest.mark.slow
@pytest.mark.parametrize("cell", [LSTM(8, 16, peephole=True), nn.LSTM(8, 16)], ids=["ours", "torch"])
def test_glorot_of_an_lstm(cell: nn.Module) -> None:
    glorot(cell)
    weights = {name.removesuffix("_l0"): weight for name, weight in cell.named_parameters()}
    assert weights["weight_ih"].abs().max() <= math.sqrt(6 / (8 + 64))
    torch.testing.assert_close(weights["weight_hh"].T @ weights["weight_hh"], torch.eye(16), atol=1e-5, rtol=0)
    assert torch.equal(weights["bias_ih"], torch.cat([torch.zeros(16), torch.ones(16), torch.zeros(32)]))
    assert not any(weights[name].any() for name in ("bias_hh", "peephole") if name in weights)


def test_glorot_uses_the_current_generator() -> None:
    module = build("word_lstm", (6,), 20)
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        glorot(module)
        drawn.append(nn.utils.parameters_to_vector(module.parameters()).detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert float(drawn[0][: 20 * 192].abs().max()) <= 0.05  # the embedding
