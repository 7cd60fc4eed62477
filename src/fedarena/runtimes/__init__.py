"""Where clients run: here, or in worker processes. A runtime maps jobs and knows nothing of learning."""
