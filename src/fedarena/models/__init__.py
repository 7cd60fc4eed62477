"""Models as functions of one flat vector."""
