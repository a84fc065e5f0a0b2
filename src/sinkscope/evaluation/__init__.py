"""Tasks with exact answers, and how many of them a model gets right.

score = evaluate(load_model("runs/twins/twin-ar/model"), "copy")
score.score, score.low, score.high
"""

from sinkscope.evaluation.answers import Scorer, exact, last_number
from sinkscope.evaluation.base import ROOM, Example, Task
from sinkscope.evaluation.intervals import wilson_interval
from sinkscope.evaluation.running import Plan, Score, Wrong, evaluate, plan_evaluation, task_settings
from sinkscope.evaluation.tasks import LITTLE, TASKS, examples, find_task

__all__ = [
    "LITTLE",
    "ROOM",
    "TASKS",
    "Example",
    "Plan",
    "Score",
    "Scorer",
    "Task",
    "Wrong",
    "evaluate",
    "exact",
    "examples",
    "find_task",
    "last_number",
    "plan_evaluation",
    "task_settings",
    "wilson_interval",
]
