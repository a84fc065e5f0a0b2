"""What to say where memory runs out, instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sinkscope.errors import UserError


@contextmanager
def memory_advice(message: str) -> Iterator[None]:
    """Raise `UserError` with the message where memory runs out in the block; any other error goes on as it is."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        raise UserError(message) from error


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error) or "out of memory" in str(error)
