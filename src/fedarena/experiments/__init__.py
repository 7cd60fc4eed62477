"""Which runs are made, in which order and in which folder: single runs, comparisons, suites, searches and tuning. Results
as values belong to `results`, workers to `runtimes`."""
