"""Experiments: single runs, comparisons, suites, searches and tuning, in their order and in their folders. Results as
values belong to `results`, workers to `runtimes`."""
