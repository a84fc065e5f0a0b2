"""Watch a model where a scorer asks for what its keys received, and leave it alone where none does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sinkscope.attention import watch
from sinkscope.compression import Compress
from sinkscope.families import Model


@contextmanager
def watched_for(model: Model, compress: Compress | None) -> Iterator[None]:
    """The model as the scorer of `compress` needs it."""
    if compress is None or not compress.how.needs_received:
        yield
        return
    with watch(model):
        yield
