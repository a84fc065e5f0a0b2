"""`sinkscope chat`: several turns with a model, in the terminal or through a pipe.

    printf 'Why is the sky blue?\nAnd at night?\n' | sinkscope chat smollm2-135m

Each line is a turn. The checkpoint's own chat template writes the conversation out; `--plain` goes on with plain text
instead. `/reset` forgets the conversation, `/quit` or the end of the input ends it. Answers go to standard output, all
else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli import console
from sinkscope.cli.groups import add_command
from sinkscope.cli.keys_options import OneMasking, masked_line
from sinkscope.cli.live import Live, Speed, live_view
from sinkscope.cli.options import (
    DecodingOptions,
    Json,
    ModelName,
    OpeningOptions,
)
from sinkscope.errors import UserError, one_line

if TYPE_CHECKING:
    from sinkscope.decoding import Generation
    from sinkscope.decoding.settings import Settings
    from sinkscope.families import Model
    from sinkscope.interventions import MaskSinks

QUIT, RESET = "/quit", "/reset"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "chat", _chat)


def _chat(
    model_name: ModelName,
    decoding: DecodingOptions,
    masking: OneMasking,
    opening: OpeningOptions,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A first message of the role system.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Go on with plain text, without a chat template.")] = False,
    live: Live = False,
    as_json: Json = False,
) -> None:
    """Talk with a model, a line a turn; /reset forgets what was said, /quit ends it."""
    from sinkscope.families import load_model

    intervention = masking.intervention()
    model = load_model(model_name, **opening.loading())
    talk = _Talk(model, decoding.settings_for(model), intervention, system, plain)

    def tell() -> None:
        masked = {} if intervention is None else {"intervention": intervention.to_dict()}
        console.print_json({**console.origin(model), **masked, "turns": talk.turns})

    try:
        _converse(talk, live=live, as_json=as_json)
    except (UserError, KeyboardInterrupt):
        if as_json and talk.turns:  # those that were answered before
            tell()
        raise
    if as_json:
        tell()


def _converse(talk: _Talk, *, live: bool, as_json: bool) -> None:
    """Go on until the input ends. Raises `UserError` for a line that can't be answered, but on a terminal."""
    with live_view(talk.model, shown=live and not as_json) as view:
        for line in _lines(as_json):
            if line == RESET:
                talk.reset()
                continue
            view.speed = Speed()
            view.begin()
            try:
                done = talk.say(line, view.look)
            except UserError as error:
                if not sys.stdin.isatty():
                    raise
                console.say(f"sinkscope: {one_line(str(error))} ({RESET} forgets what was said)", err=True)
                continue
            talk.turns[-1]["speed"] = view.speed.to_dict()
            if as_json:
                continue
            console.say(talk.turns[-1]["answer"])
            sys.stdout.flush()
            if done.removed is not None:
                console.err.print(masked_line(done.removed.whole().to_dict()), style="dim")
            console.err.print(view.speed.told, style="dim")


def _lines(quiet: bool) -> Iterator[str]:
    """What is said, line by line, without what is empty; on a terminal with a prompt."""
    asking = sys.stdin.isatty() and not quiet
    if asking:
        console.say(f"{RESET} forgets what was said, {QUIT} ends it", err=True)
    while True:
        if asking:
            console.err.print("> ", end="", style="bold")
        line = sys.stdin.readline()
        if not line or line.strip() == QUIT:
            return
        if line.strip():
            yield line.strip()


class _Talk:
    """A conversation: what was said, and how the model goes on with it. Raises `UserError` for models without turns."""

    def __init__(
        self, model: Model, settings: Settings, intervention: MaskSinks | None, system: str | None, plain: bool
    ) -> None:
        from sinkscope.decoding.texts import tokenizer_of

        tokenizer: Any = tokenizer_of(model)
        if settings.new_tokens == 0:
            raise UserError(f"{model.name} fills the masks of a text, which has no turns; use sinkscope generate")
        if tokenizer.chat_template is None and not plain:
            raise UserError(
                f"{model.name} has no chat template: add --plain to go on with plain text, turn after turn, or take an "
                "instruct model"
            )
        if plain and system is not None:
            raise UserError("--system is a message of a chat, and --plain has none; leave one of them out")
        self.model = model
        self._settings = settings
        self._intervention = intervention
        self._plain = plain
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.turns: list[dict[str, Any]] = []
        """All that was said, each turn with the tokens of its prompt."""
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        self._messages: list[dict[str, str]] = list(self._first)

    def say(self, line: str, look: Any) -> Generation:
        """The model's answer, which the conversation then holds. Raises `UserError` where it does not fit the context;
        the line is forgotten then."""
        from sinkscope.decoding import generate

        messages = [*self._messages, {"role": "user", "content": line}]
        prompt = " ".join(one["content"] for one in messages) if self._plain else [messages]
        done = generate(self.model, prompt, self._settings, intervention=self._intervention, on_step=look)
        assert done.text is not None
        answer = done.text[0].strip()
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        self.turns.append({"said": line, "answer": answer, "prompt_tokens": done.prompt_length})
        return done
