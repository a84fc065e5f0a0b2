"""sinkscope as a model of EleutherAI's lm-evaluation-harness (`lm_eval`), and the harness's tasks as measures.

    sinkscope-lm-eval --model sinkscope --model_args pretrained=twin-dlm,mask=top-k:5,control=random --tasks ...
    sinkscope ablate twin-dlm --task lm-eval:TASK

The harness looks for models in its own package alone. The command tells it of ours; in a program `register()` does,
before `lm_eval.simple_evaluate(model="sinkscope", ...)`. Needs `pip install 'sinkscope[eval]'`.
"""

from sinkscope.evaluation.harness.command import register

__all__ = ["register"]
