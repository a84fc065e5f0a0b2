"""sinkscope as a model of EleutherAI's lm-evaluation-harness (`lm_eval`).

    sinkscope-lm-eval --model sinkscope --model_args pretrained=twin-dlm,top_k=5,control=random --tasks ...

The harness looks for models in its own package only, so it must be told of ours: the command does, and in a program
`register()` does, before `lm_eval.simple_evaluate(model="sinkscope", ...)`. Needs `pip install 'sinkscope[eval]'`.
"""

from sinkscope.evaluation.harness.registering import register

__all__ = ["register"]
