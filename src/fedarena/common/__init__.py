"""Tools without knowledge of learning: progress on a terminal, locks of folders."""
