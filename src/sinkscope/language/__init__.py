"""A little language with exact answers, generated from a seed."""
