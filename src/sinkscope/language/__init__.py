"""A little language with exact answers, generated from a seed: what the twins speak.

    problem = draw(MAKERS["copy"], Random(1), 64, "test")
    prompt_text(problem), problem.questions[0][1]      # ("Copy the list: ... =>", its answer)

Documents are packed with problems. A seed gives the same on every machine; a change of what it gives takes new twins.
Costs about two microseconds a token. Misleads: what is held out are facts, not sentences, sums, or a list of letters
under another verb; `problems` says more.
"""

from sinkscope.language.documents import Document, document, prompt_text
from sinkscope.language.problems import MAKERS, Problem, draw, split_of
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
