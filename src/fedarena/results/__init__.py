"""What we learned: run records, metrics, plots."""
