"""Keys that are made once, and every backend that this machine can run."""

from __future__ import annotations

import warnings

import pytest

from fedarena.vertical.crypto import PrivateKey, backends, generate


@pytest.fixture(params=backends.available())
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One after the other, all backends."""
    monkeypatch.setenv(backends.SWITCH, request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def short_key() -> PrivateKey:
    """Of 1024 bits: what is to be seen does not depend on the size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return generate(1024, allow_1024=True)


@pytest.fixture(scope="session")
def key() -> PrivateKey:
    """Return a key of the default size."""
    return generate()
