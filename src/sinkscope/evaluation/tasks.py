"""All tasks by name, and their examples.

    examples(find_task("copy"), 3)      # [Example(prompt='Copy the list: ...', answer=...), ...]

The same task, seed and room give the same examples on every machine; fewer of them are the first of more. Costs a
fifth of a millisecond an example. A new task is a `Task` in a module's `TASKS`, listed here.
"""

from __future__ import annotations

from random import Random

from sinkscope.discovery import Names
from sinkscope.errors import UserError
from sinkscope.evaluation import little
from sinkscope.evaluation.base import ROOM, Example, Task, check_count

LITTLE: tuple[str, ...] = tuple(task.name for task in little.TASKS)
"""Names of the tasks of the little language."""
TASKS: Names[Task] = Names("task")
for _task in little.TASKS:
    TASKS.add(_task.name, _task)
find_task = TASKS.find
_PATIENCE = 2000
"""So many repetitions in a row mean that there is nothing new to come."""


def examples(task: Task, n: int, seed: int = 0, room: int = ROOM) -> list[Example]:
    """`n` held-out examples with distinct prompts whose texts take at most about `room` tokens.

    Raises `UserError` where n or room is less than 1, and where the task has fewer than n distinct prompts in that
    room.
    """
    for name, value in (("n", n), ("room", room)):
        check_count(name, value)
    found: dict[str, Example] = {}
    repeated = 0
    for example in task.stream(Random(f"{task.name} {seed}"), room):
        repeated = repeated + 1 if example.prompt in found else 0
        if repeated == _PATIENCE:
            break
        found.setdefault(example.prompt, example)
        if len(found) == n:
            return list(found.values())
    raise UserError(
        f"{task.name} has only {len(found)} different prompts in a room of {room} tokens, {n} were asked for; "
        "lower n, or give more room"
    )
