"""The command line: one file a command, each a thin layer that builds settings objects and prints results."""
