"""What is run, in which order, and in which folder: one run, comparisons, suites, searches and tuning. Results as values
belong to `results`, the workers to `runtimes`."""
