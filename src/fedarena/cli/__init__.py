"""The command line: one file for each command or group of commands. Its functions parse options and print results; the work
is done by the packages behind it, which are imported when a command runs so that `--help` is quick."""
