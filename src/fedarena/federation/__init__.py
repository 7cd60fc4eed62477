"""Server and clients of a real horizontal federation, on machines of their own, with Flower between them."""
