"""The canvas drawn while it is filled, and several turns with a model."""

import io
from collections.abc import Callable

import pytest
import torch
from cli_runs import Command, strict_json
from rich.console import Console

from sinkscope.attention import watch
from sinkscope.cli import console, live
from sinkscope.decoding import Decoding, Denoising, Step, generate
from sinkscope.families import Model, load_model

PROMPT = "i C A 1 A"


@pytest.fixture(scope="module")
def chain() -> Callable[[str], Model]:
    made: dict[str, Model] = {}
    return lambda name: made.setdefault(name, load_model(name, device="cpu"))


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal without colours on standard error, for which no step is slowed down."""
    written = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=written, force_terminal=True, width=120, color_system=None))
    monkeypatch.setattr(live, "LEAST_SECONDS", 0.0)
    return written


def told(console_: Console, view: live.CanvasView, step: Step) -> list[str]:
    with console_.capture() as captured:
        console_.print(view.picture(step))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("name", ["chain-dlm", "chain-ar"])
def test_a_picture_shows_tokens_masks_and_sinks(chain: Callable[[str], Model], name: str) -> None:
    """Every row against the step's own tokens, and rings against maps of a plain pass; the rows are padded."""
    model, plain = chain(name), Console(width=200, color_system=None)
    prompts = [PROMPT, "C A"]
    settings = Denoising(gen_length=6, block_length=3, steps=6) if name == "chain-dlm" else Decoding(max_new_tokens=4)
    ringed = 0
    with watch(model) as watched:
        view = live.CanvasView(model, watched, None)
        steps: list[tuple[Step, list[str], torch.Tensor]] = []

        def look(step: Step) -> None:
            view.look(step)
            steps.append((step, told(plain, view, step), watched.received.clone()))

        generate(model, prompts, settings, on_step=look)
    for step, lines, received in steps:
        for row, length in ((0, 6), (1, 3)):
            padding = 6 - length
            words = lines[row].split()
            assert len(words) == step.canvas.shape[1] - padding
            own = received[:, row, :, padding:]  # (layer, head, key)
            keys = own.shape[-1]
            mean = (own.sum(-1, keepdim=True) - own) / (keys - 1)
            shares = ((own - mean) * keys > 3).float().mean((0, 1))
            for place, word in enumerate(words):
                token = int(step.canvas[row, padding + place])
                text = "·" if token == model.family.mask_token_id else model.tokenizer.convert_ids_to_tokens(token)  # type: ignore[union-attr]
                sink = place < keys and bool(step.takes_part[row]) and float(shares[place]) >= 1 / 8
                ringed += sink
                if step.takes_part[row]:
                    assert word == (f"({text})" if sink else text)
        assert f"pass {step.index + 1}," in lines[2]
        assert "(sink)" in lines[3]
    assert ringed > 0
    assert view.speed.tokens == sum(int((one.committed & one.takes_part[:, None]).sum()) for one, *_ in steps)
    assert view.speed.seconds > 0


def test_generate_draws_on_a_terminal_alone(sinkscope: Command, screen: io.StringIO) -> None:
    arguments = ("generate", "chain-dlm", "--prompt", PROMPT, "--gen-length", 4, "--device", "cpu")
    plain = sinkscope(*arguments)
    assert plain.code == 0
    assert "·" not in screen.getvalue()
    drawn = sinkscope(*arguments, "--live")
    assert drawn.out == plain.out
    assert "·" in screen.getvalue()
    assert "(sink) in an eighth" in screen.getvalue()
    assert "4 tokens in" in screen.getvalue().splitlines()[-1]


def test_live_without_a_terminal_says_what_generate_says(sinkscope: Command) -> None:
    arguments = ("generate", "chain-ar", "--prompt", PROMPT, "--max-new-tokens", 4, "--device", "cpu")
    assert sinkscope(*arguments, "--live").table == sinkscope(*arguments).table
    document = sinkscope(*arguments, "--live", "--json").document
    assert document["speed"]["tokens"] == 4
    assert document["speed"]["tokens_per_second"] == pytest.approx(4 / document["speed"]["seconds"])


def test_a_chat_keeps_what_was_said(
    sinkscope: Command, monkeypatch: pytest.MonkeyPatch, chain: Callable[[str], Model]
) -> None:
    """Through a pipe: every turn is a generation after all before it; /reset forgets them, /quit ends."""
    model, settings = chain("chain-ar"), Decoding(max_new_tokens=3)

    def answer(text: str) -> str:
        done = generate(model, text, settings)
        assert done.text is not None
        return done.text[0].strip()

    first = answer("i C A")
    second = answer(f"i C A {first} B 1")
    third = answer("B 2")
    said = "i C A\n\n B 1 \n/reset\nB 2\n/quit\nA 1\n"
    command = ("chat", "chain-ar", "--plain", "--max-new-tokens", 3, "--device", "cpu")
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    done = sinkscope(*command)
    assert done.code == 0
    assert done.out.splitlines() == [first, second, third]
    assert done.err.count("3 tokens in") == 3
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    turns = sinkscope(*command, "--json").document["turns"]
    assert [(one["said"], one["answer"]) for one in turns] == [("i C A", first), ("B 1", second), ("B 2", third)]
    assert [one["prompt_tokens"] for one in turns] == [4, 9, 3]


def test_a_chat_goes_through_the_checkpoints_template(
    sinkscope: Command, monkeypatch: pytest.MonkeyPatch, chain: Callable[[str], Model]
) -> None:
    model = chain("chain-ar")
    given: list[object] = []
    assert model.tokenizer is not None
    template = "{% for m in messages %}{{ 'A ' if m.role == 'user' else 'B ' }}{{ m.content }} {% endfor %}i"
    monkeypatch.setattr("sinkscope.families.load_model", lambda *_, **__: model)
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    real = generate

    def seen(model: Model, prompt: object, *rest: object, **more: object) -> object:
        given.append(prompt)
        return real(model, prompt, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("sinkscope.decoding.generate", seen)
    monkeypatch.setattr("sys.stdin", io.StringIO("C\n1\n"))
    done = sinkscope("chat", "chain-ar", "--system", "2", "--max-new-tokens", 2)
    first = done.out.splitlines()[0]
    system, user = {"role": "system", "content": "2"}, {"role": "user", "content": "C"}
    assert given == [
        [[system, user]],
        [[system, user, {"role": "assistant", "content": first}, {"role": "user", "content": "1"}]],
    ]
    written = model.tokenizer("B 2 A C i", add_special_tokens=False)["input_ids"]
    assert generate(model, written, Decoding(max_new_tokens=2)).text == [first]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("chain-ar",), "chain-ar has no chat template: add --plain to go on with plain text"),
        (("chain-dlm", "--plain", "--gen-length", 0), "fills the masks of a text, which has no turns"),
        (("chain-ar", "--plain", "--system", "x"), "--system is a message of a chat, and --plain has none"),
        (("chain-ar", "--plain", "--max-new-tokens", 100000), "make 100002, the context is"),
    ],
)
def test_chats_that_are_refused(
    sinkscope: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], message: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("A\n"))
    assert message in sinkscope("chat", *arguments, "--device", "cpu").mistake


def test_turns_before_a_mistake_are_told(sinkscope: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"i C A\n{'B ' * 2000}\nB 1\n"))
    done = sinkscope("chat", "chain-ar", "--plain", "--max-new-tokens", 3, "--device", "cpu", "--json")
    assert "the context is" in done.mistake
    found = strict_json(done.out)
    assert [one["said"] for one in found["turns"]] == ["i C A"]
    assert found["model"]["name"] == "chain-ar" and found["turns"][0]["speed"]["tokens"] == 3


def test_turns_before_an_interrupt_are_told(sinkscope: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["i C A\n"])

    def line() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("sys.stdin.readline", line)
    done = sinkscope("chat", "chain-ar", "--plain", "--max-new-tokens", 3, "--device", "cpu", "--json")
    assert done.code == 130
    assert [one["said"] for one in strict_json(done.out)["turns"]] == ["i C A"]
