"""The command line: related commands a file, each a thin layer that builds settings objects and prints results."""
