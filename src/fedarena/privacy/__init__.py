"""What happens to an update on its way to the server: clipping, noise, compression, secure aggregation,
and the accountant that adds up what was released."""
