"""The command line: one file for each group of commands, without logic of its own."""
