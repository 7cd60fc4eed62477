"""Messages between organisations: certificates and keys, gRPC with mutual TLS (vertical), the Flower link (federation).

What the messages mean belongs in `federation` and `vertical`.
"""
