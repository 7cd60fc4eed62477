"""Tools that know nothing of learning: files and locks, formatting, progress, log messages, optional imports."""
