"""A federation for real: an organiser and participants on machines of their own, with Flower between them."""
