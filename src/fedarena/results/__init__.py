"""Run folders, and runs and comparisons as values: their scores, verdicts, tables and files. Nothing here runs
an experiment."""
