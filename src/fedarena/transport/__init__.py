"""How messages travel between organisations: certificates and keys, gRPC with mutual TLS, the Flower link."""
