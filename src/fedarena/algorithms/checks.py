"""Settings that several algorithms refuse before a run starts, because training with them cannot work."""

from __future__ import annotations

from fedarena.algorithms.setting import Setting
from fedarena.config.errors import BadValue


def check_proximal_weight(name: str, lr: float, mu: float, setting: str) -> None:
    """Refuse a proximal term of weight `mu` whose own gradient steps diverge: lr x mu must be below 2."""
    if lr * mu >= 2:
        raise BadValue(
            f"{name} diverges: local.lr x {setting} = {lr * mu:g}, and must stay below 2",
            remedy=f"use {setting} below {2 / lr:g}, or a smaller local.lr",
            where=f"algorithm.{setting}",
        )


def check_representation(name: str, setting: Setting) -> None:
    """Refuse a model whose last layer is not linear, or has nothing learned before it."""
    if setting.representation is None:
        raise BadValue(
            f"{name} compares representations, and the model has no linear last layer with trained layers before it",
            remedy="use a model such as mlp_2nn, or a module with a method `features(x)` and a linear layer `head`",
            where="model",
        )


def check_has_classes(name: str, setting: Setting, why: str) -> None:
    """Refuse a task other than classification, and say why the algorithm needs classes."""
    if not setting.has_classes:
        raise BadValue(
            f"{name} {why}, and these samples have none of their own",
            remedy=f"use {name} for classification, or choose another algorithm",
            where="algorithm",
        )


def check_counts_epochs(name: str, setting: Setting, why: str) -> None:
    """Refuse `local.steps` for algorithms that need whole epochs, and say why they do."""
    if setting.steps is not None:
        raise BadValue(
            f"{name} {why}, and local.steps = {setting.steps} sets steps in place of epochs",
            remedy="set local.epochs in place of local.steps",
            where="local.steps",
        )


def check_plain_sgd(name: str, setting: Setting, why: str) -> None:
    """Refuse other local optimizers for algorithms that are defined for SGD, and say why they are."""
    if setting.optimizer != "sgd":
        raise BadValue(
            f"{name} {why}: local.optimizer = '{setting.optimizer}' does not go with it",
            remedy='set local.optimizer = "sgd", or use fedavg, fedprox, cyclic or an adaptive server such as fedadam',
            where="local.optimizer",
        )


def check_momentum_is_reset(name: str, setting: Setting) -> None:
    """Refuse local momentum that is kept between rounds, for algorithms that measure the local steps of one round."""
    if setting.momentum and not setting.reset_momentum:
        raise BadValue(
            f"{name} measures each round's work from rest, and momentum is kept between rounds",
            remedy="set local.reset_momentum = true",
            where="local.reset_momentum",
        )


PRIVATE_REMEDY = "choose an algorithm whose clients only train, such as fedavg or fedprox, or leave out local.privacy"


def unprotected(name: str, what: str) -> str:
    """Return that an algorithm uses something of the samples that private training does not protect."""
    return f"{name} uses {what}, which local.privacy does not protect"


def check_control_variates(name: str, setting: Setting, from_gradient: bool) -> None:
    """Refuse other optimizers, momentum that is kept between rounds, and gradients of all samples that are private."""
    check_plain_sgd(name, setting, "estimates gradients from the steps of SGD")
    check_momentum_is_reset(name, setting)
    if from_gradient and setting.is_private:
        what = unprotected(name, "the gradient over all samples of a client")
        raise BadValue(what, remedy=PRIVATE_REMEDY, where="local.privacy")
