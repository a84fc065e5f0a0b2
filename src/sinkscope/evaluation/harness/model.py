"""The model class that the harness runs, for every family: diffusion, autoregressive and masked language models.

It is made at once, with its arguments and the checkpoint's description checked, and loads no weights before the first
request: a task whose data can't be had is told of before a large model is read.

Misleads: one process does all the work (`device_map` and several GPUs are not for it), and `--use_cache` keeps answers
by their prompts alone, so each setting needs a file of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sinkscope.decoding.running import kind_of
from sinkscope.decoding.texts import write_chat
from sinkscope.errors import UserError, memory_advice
from sinkscope.evaluation.cache_stats import Meter, watched_for
from sinkscope.evaluation.harness.answering import Scored, TaskRun, answer, check_pairs, plan_answers, score, task_of
from sinkscope.evaluation.harness.arguments import Arguments, read_arguments
from sinkscope.evaluation.harness.requests import Encoder, Pair, check_kind
from sinkscope.evaluation.inputs import Observer
from sinkscope.families import Model, describe_model, load_model
from sinkscope.families.describe import ModelDescription
from sinkscope.interventions import CONTROLS


class HarnessModel(LM):  # type: ignore[misc]  # the harness is untyped
    """Answers requests of the harness with a model of ours."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        self.arguments = arguments
        self.meter = Meter()
        self.runs: list[TaskRun] = []

    @property
    @abstractmethod
    def model(self) -> Model:
        """The model, loaded."""

    @abstractmethod
    def working(self, what: str, total: int) -> AbstractContextManager[Observer]:
        """What goes on around so many requests, or windows of their texts."""

    def check(self, requests: Sequence[Instance]) -> None:
        """Raise `UserError` for requests of one kind that can't be answered."""
        if requests[0].request_type == "generate_until":
            plan_answers(self.model, self.arguments, requests)
        else:
            check_pairs(self.model, self.arguments, [pair for some in self._pairs(requests) for pair in some])

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """Answers, in the order of the requests."""
        answers: dict[int, str] = {}
        with self.working("generate", len(requests)) as observer:

            def keep(number: int, text: str) -> None:
                answers[number] = text
                self.cache_hook.add_partial("generate_until", requests[number].args, text)
                observer(len(answers))

            self.runs += answer(self.model, self.arguments, requests, keep, self.meter)
        return [answers[number] for number in range(len(requests))]

    def loglikelihood(self, requests: Sequence[Instance]) -> list[Scored]:
        """Log-likelihood of each continuation after its context, and whether greedy decoding gives it."""
        scores = [one for [one] in self._scores(requests)]
        for request, one in zip(requests, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, one)
        return scores

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Log-likelihood of each text."""
        return [sum(value for value, _ in some) for some in self._scores(requests)]

    def _scores(self, requests: Sequence[Instance]) -> list[list[Scored]]:
        scores, runs = score(self.model, self.arguments, requests, self._pairs(requests), self.working, self.meter)
        self.runs += runs
        return scores

    def _pairs(self, requests: Sequence[Instance]) -> list[list[Pair]]:
        encoder, found = Encoder(self.model), []
        for number, one in enumerate(requests):
            if one.request_type == "loglikelihood_rolling":
                found.append(encoder.windows(one.args[0], f"text {number} of {task_of(one)}"))
            else:
                found.append([encoder.pair(one.args[0], one.args[1], f"request {number} of {task_of(one)}")])
        return found


class SinkscopeLM(HarnessModel):
    """`--model sinkscope`. Its arguments are those of `arguments.ARGUMENTS`; raises `UserError` for wrong ones."""

    def __init__(self, max_batch_size: object = None, **given: Any) -> None:
        if max_batch_size is not None:
            raise UserError("max_batch_size goes with batch_size auto, which sinkscope has not; give --batch_size N")
        super().__init__(read_arguments(given))
        self.description = describe_model(self.arguments.pretrained, **self.arguments.told)
        _check(self.arguments, self.description)
        self._given = given
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
        return load_model(asked.pretrained, dtype=asked.dtype, device=asked.device, **asked.told)

    @contextmanager
    def working(self, what: str, total: int) -> Iterator[Observer]:
        """A progress bar on standard error where somebody watches, the model watched where a scorer needs that, and
        advice where memory runs out."""
        size, console = self.arguments.batch_size, Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        smaller = f"use --batch_size {size // 2}" if size > 1 else "use shorter texts or another device"
        with (
            memory_advice(f"memory ran out with batch size {size}: {smaller}"),
            watched_for(self.model, self.arguments.condition.compression),
            Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        ):
            row = bar.add_task(what, total=total)
            yield lambda done: bar.update(row, completed=done)

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

    def get_model_info(self) -> dict[str, Any]:
        """What goes into the results file: the model, what was asked for, and what was run and removed."""
        asked, known, loaded = self.arguments, vars(self.description), self.__dict__.get("model")
        preset, condition = asked.found_preset, asked.condition.to_dict()
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
        return {
            "model_num_parameters": self.description.parameters,
            "model_dtype": None if loaded is None else str(loaded.dtype),
            "model_revision": asked.revision or "main",
            "model_sha": self.description.revision or "",
            "sinkscope": {
                "version": version("sinkscope"),
                "model": {**{name: known[name] for name in own}, "device": loaded and str(loaded.device)},
                "arguments": dict(self._given),
                "preset": preset and {"name": asked.preset, **vars(preset)},
                "intervention": condition["intervention"],
                "compression": condition["compression"],
                "runs": [one.to_dict() for one in self.runs],
            },
        }


def _check(arguments: Arguments, description: ModelDescription) -> None:
    """What can be refused before a weight is read."""
    name, preset, masking = description.name, arguments.found_preset, arguments.condition.intervention
    if preset is not None and preset.family != description.family:
        raise UserError(
            f"preset {arguments.preset} is of {preset.family} models, {name} is of the family {description.family}; "
            "give its settings one by one"
        )
    check_kind(arguments.decoding, kind_of(description), name)
    drops = arguments.condition.compression is not None
    if drops and description.bidirectional and arguments.decoding.get("cache") in (None, "blocks"):
        cache = "dual" if description.block_length is None else "prefix"
        raise UserError(
            f"{name} sees in both directions: keys are dropped from a block cache only, so add cache={cache}"
        )
    if masking is None or description.mask_token_id is not None:
        return
    if masking.control is not None and CONTROLS[masking.control].by_class:
        raise UserError(f"control={masking.control} needs mask tokens, {name} has none; use another control")
    if masking.classes == ("mask",):
        raise UserError(f"{name} has no mask token, so no key of class 'mask'; name other classes")
