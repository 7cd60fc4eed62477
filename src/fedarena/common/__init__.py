"""Tools that do not depend on machine learning: files and locks, formatting, progress, log messages, optional imports."""
