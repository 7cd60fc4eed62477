"""Check the addresses of machines that users give."""

from __future__ import annotations

from fedarena.config.errors import BadValue


def check_address(address: str, example: str) -> str:
    """Return an address of the form `machine:port`; refuse any other.

    >>> check_address("10.0.0.1:8440", "server.example.org:8440")
    '10.0.0.1:8440'
    """
    machine, colon, port = address.rpartition(":")
    if not (colon and machine and port.isdigit() and int(port) < 65536):
        raise BadValue(f"'{address}' is not an address", remedy=f"write machine:port, e.g. {example}")
    return address
