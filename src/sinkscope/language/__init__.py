"""A little language with exact answers, generated from a seed.

problem = draw(MAKERS["copy"], Random(1), 64, "test")
prompt_text(problem)                               # "Copy the list: ... =>"
"""

from sinkscope.language.documents import MAKERS, Document, document, prompt_text
from sinkscope.language.problems import Problem, draw, split_of
from sinkscope.language.tokenizer import little_tokenizer
from sinkscope.language.vocabulary import WORDS, decode, encode

__all__ = [
    "MAKERS",
    "WORDS",
    "Document",
    "Problem",
    "decode",
    "document",
    "draw",
    "encode",
    "little_tokenizer",
    "prompt_text",
    "split_of",
]
