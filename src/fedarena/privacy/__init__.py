"""The steps of an update on its way to the server: clipping, noise, compression and secure aggregation,
and the accountant and ledger of what was released."""
