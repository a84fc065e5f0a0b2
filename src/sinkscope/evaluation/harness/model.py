"""The model class that the harness runs, for every family: diffusion, autoregressive and masked language models.

It is made at once, with its arguments and the checkpoint's description checked, and loads no weights before the first
request: a task whose data can't be had is told of before a large model is read.

Misleads: one process does all the work (`device_map` and several GPUs are not for it), and `--use_cache` keeps answers
by their prompts alone, so each setting needs a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from sinkscope.decoding.texts import write_chat
from sinkscope.errors import UserError
from sinkscope.evaluation.harness.arguments import Arguments, read_arguments
from sinkscope.evaluation.harness.encoding import Encoder
from sinkscope.evaluation.harness.generating import Question, answer
from sinkscope.evaluation.harness.records import TaskRun
from sinkscope.evaluation.harness.scoring import Pair, Scored, score, windows
from sinkscope.evaluation.harness.settings import check_kind
from sinkscope.evaluation.harness.working import counting, smaller_batches
from sinkscope.families import Model, describe_model, load_model
from sinkscope.families.describe import ModelDescription
from sinkscope.interventions import CONTROLS


class SinkscopeLM(LM):  # type: ignore[misc]  # the harness is untyped
    """`--model sinkscope`. Its arguments are those of `arguments.ARGUMENTS`; raises `UserError` for wrong ones."""

    def __init__(self, max_batch_size: object = None, **given: Any) -> None:
        super().__init__()
        if max_batch_size is not None:
            raise UserError("max_batch_size goes with batch_size auto, which sinkscope has not; give --batch_size N")
        self.arguments: Arguments = read_arguments(given)
        self.description = describe_model(self.arguments.pretrained, revision=self.arguments.revision)
        _check(self.arguments, self.description)
        self._given = given
        self._runs: list[TaskRun] = []
        self._template: str | None = None

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> SinkscopeLM:
        """As the harness makes a model; what `model_args` say wins over its own options.

        Its command line names `cuda:0` where nobody named a device: that is "a GPU if there is one".
        """
        options = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if options.get("device") == "cuda:0" and not torch.cuda.is_available():
            del options["device"]
        return cls(**{**options, **arg_dict})

    @cached_property
    def model(self) -> Model:
        """The model, loaded when it is first asked for."""
        asked = self.arguments
        return load_model(asked.pretrained, dtype=asked.dtype, device=asked.device, revision=asked.revision)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, which the harness describes in its results."""
        return self.model.tokenizer

    @property
    def tokenizer_name(self) -> str:
        """Tells the harness's caches of written-out chats apart."""
        return self.arguments.pretrained.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template that `apply_chat_template` will use: the tokenizer's, or the one of its that is named."""
        if not chat_template:
            return None
        name = None if chat_template is True else str(chat_template)
        template, known = self.tokenizer.chat_template, self.arguments.pretrained
        if template is None:
            raise UserError(f"the tokenizer of {known} has no chat template; leave --apply_chat_template out")
        if name is not None and name not in (template if isinstance(template, dict) else {}):
            there = ", ".join(template) if isinstance(template, dict) else "only one, without a name"
            raise UserError(f"the tokenizer of {known} has no chat template {name!r}; there is {there}")
        self._template = str(self.tokenizer.get_chat_template(name))
        return self._template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat written out, special tokens included."""
        return write_chat(
            self.tokenizer,
            chat_history,
            "a chat of the task",
            chat_template=self._template or self.chat_template(True),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """Answers, in the order of the requests."""
        questions = [Question(task=_task(one), text=one.args[0], asked=one.args[1]) for one in requests]
        answers: dict[int, str] = {}
        with counting("generate", len(questions)) as observer, smaller_batches(self.arguments.batch_size):

            def keep(number: int, text: str) -> None:
                answers[number] = text
                self.cache_hook.add_partial("generate_until", requests[number].args, text)
                observer(len(answers))

            self._runs += answer(self.model, self.arguments, questions, keep)
        return [answers[number] for number in range(len(questions))]

    def loglikelihood(self, requests: Sequence[Instance]) -> list[Scored]:
        """Log-likelihood of each continuation after its context, and whether greedy decoding gives it."""
        encoder = Encoder(self.model)
        pairs = []
        for number, one in enumerate(requests):
            given, scored = encoder.pair(one.args[0], one.args[1], f"request {number} of {_task(one)}")
            pairs.append([Pair(given=given, scored=scored)])
        scores, runs = score(self.model, self.arguments, "loglikelihood", [_task(one) for one in requests], pairs)
        self._runs += runs
        for request, [one] in zip(requests, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, one)
        return [one for [one] in scores]

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Log-likelihood of each text."""
        encoder, context = Encoder(self.model), self.model.family.max_length
        pairs = []
        for number, one in enumerate(requests):
            tokens = encoder.text(one.args[0], f"text {number} of {_task(one)}")
            pairs.append(windows(tokens, encoder.start, context))
        tasks = [_task(one) for one in requests]
        scores, runs = score(self.model, self.arguments, "loglikelihood_rolling", tasks, pairs)
        self._runs += runs
        return [sum(value for value, _ in some) for some in scores]

    def get_model_info(self) -> dict[str, Any]:
        """What goes into the results file: the model, what was asked for, and what was run and removed."""
        preset, masking = self.arguments.found_preset, self.arguments.masking
        compression = self.arguments.compression
        known = vars(self.description)
        own = (
            "name",
            "revision",
            "family",
            "architecture",
            "stored_dtype",
            "layers",
            "heads",
            "kv_heads",
            "max_length",
        )
        loaded = self.__dict__.get("model")
        return {
            "model_num_parameters": self.description.parameters,
            "model_dtype": None if loaded is None else str(loaded.dtype),
            "model_revision": self.arguments.revision or "main",
            "model_sha": self.description.revision or "",
            "sinkscope": {
                "version": version("sinkscope"),
                "model": {**{name: known[name] for name in own}, "device": loaded and str(loaded.device)},
                "arguments": dict(self._given),
                "preset": preset and {"name": self.arguments.preset, **vars(preset)},
                "intervention": None if masking is None else masking.to_dict(),
                "compression": None if compression is None else compression.to_dict(),
                "runs": [one.to_dict() for one in self._runs],
            },
        }


def _task(request: Instance) -> str:
    return str(request.task_name or "task")


def _check(arguments: Arguments, description: ModelDescription) -> None:
    """What can be refused before a weight is read."""
    name, preset, masking = description.name, arguments.found_preset, arguments.masking
    if preset is not None and preset.family != description.family:
        raise UserError(
            f"preset {arguments.preset} is of {preset.family} models, {name} is of the family {description.family}; "
            "give its settings one by one"
        )
    check_kind(arguments.decoding, description.bidirectional, name)
    if arguments.compression is not None and description.bidirectional and arguments.decoding.get("cache") is None:
        raise UserError(f"{name} sees in both directions: keys are dropped from a block cache only, so add cache=dual")
    if masking is None or description.mask_token_id is not None:
        return
    if masking.control is not None and CONTROLS[masking.control].by_class:
        raise UserError(f"control={masking.control} needs mask tokens, {name} has none; use another control")
    if masking.classes == ("mask",):
        raise UserError(f"{name} has no mask token, so no key of class 'mask'; name other classes")
