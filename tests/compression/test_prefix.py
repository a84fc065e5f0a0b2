"""A context that is read once, compressed, asked many questions, written down and read again."""

import json
from pathlib import Path

import pytest
import torch
from compression_models import FullCacheOracle, dropped_from, feed, left_padded, load_kind, save_kind, some_tokens
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import sinkscope as ss
from sinkscope.compression import (
    Compress,
    Prefix,
    Protect,
    SkipLayers,
    SnapKV,
    compress_prefix,
    load_prefix,
    save_prefix,
)
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model

CONTEXT = 31
SETTINGS = ss.Decoding(max_new_tokens=7)
HALF = Compress(Protect(SnapKV(window=5), first=2), SkipLayers(0.5, (0,)), when="both", prune_after=24, seed=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds")


@pytest.fixture(scope="module")
def llama(folder: Path) -> Model:
    return load_kind("llama", folder)


@pytest.fixture(scope="module")
def context() -> list[int]:
    torch.manual_seed(5)
    return some_tokens(CONTEXT).tolist()


@pytest.fixture(scope="module")
def prefix(llama: Model, context: list[int]) -> Prefix:
    return compress_prefix(llama, [context], Compress("key-norm", 0.4))


def state(prefix: Prefix) -> list[torch.Tensor]:
    """Everything that the prefix holds, copied."""
    contents = [layer.holding.contents for layer in prefix.kept.dropping]
    return [
        tensor.clone() for one in contents if one is not None for tensor in vars(one).values() if tensor is not None
    ]


def answers(model: Model, prefix: Prefix, questions: list[list[int]]) -> torch.Tensor:
    return ss.generate(model, questions, SETTINGS, compression=prefix).sequences


def test_answers_are_those_of_the_full_cache_with_the_dropped_keys_hidden(llama: Model, prefix: Prefix) -> None:
    question = some_tokens(5).tolist()
    text = torch.tensor([[*prefix.tokens, *question]])
    mask, oracle = torch.ones_like(text), FullCacheOracle(llama)
    oracle.feed(text, mask, 0, CONTEXT, [])
    gone = dropped_from(prefix.kept, CONTEXT)
    logits = oracle.feed(text, mask, CONTEXT, CONTEXT + 5, gone)
    written = answers(llama, prefix, [question])
    assert written[0, : CONTEXT + 5].tolist() == text[0].tolist()
    assert int(written[0, CONTEXT + 5]) == int(logits[0, -1].argmax())
    assert not torch.allclose(logits, feed(llama.network, None, text, mask, 0, CONTEXT + 5)[:, CONTEXT:]), "no effect"


def test_every_question_gets_a_copy_and_the_prefix_stays_as_it_was(llama: Model, prefix: Prefix) -> None:
    before, questions = state(prefix), [some_tokens(length).tolist() for length in (6, 2, 4)]
    together = answers(llama, prefix, questions)
    for row, question in enumerate(questions):
        alone = answers(llama, prefix, [question])
        padding = 6 - len(question)
        expected = alone[0, CONTEXT:]
        assert together[row, :CONTEXT].tolist() == list(prefix.tokens)
        assert together[row, CONTEXT + padding : CONTEXT + padding + len(expected)].tolist() == expected.tolist()
    assert all(torch.equal(old, new) for old, new in zip(before, state(prefix), strict=True))


def test_transformers_own_loop_goes_on_after_the_prefix(llama: Model, prefix: Prefix) -> None:
    before, question = state(prefix), some_tokens(4).tolist()
    text = torch.tensor([[*prefix.tokens, *question]])
    written = llama.network.generate(  # type: ignore[operator]
        input_ids=text, max_new_tokens=7, do_sample=False, cache=prefix.cache(llama)
    )
    assert torch.equal(written, answers(llama, prefix, [question])[:, : written.shape[1]])
    assert all(torch.equal(old, new) for old, new in zip(before, state(prefix), strict=True))


def test_a_prefix_of_everything_changes_nothing(llama: Model, context: list[int]) -> None:
    whole, question = compress_prefix(llama, [context], Compress("key-norm", 1.0)), some_tokens(6).tolist()
    plain = ss.generate(llama, [[*context, *question]], SETTINGS).sequences
    assert torch.equal(answers(llama, whole, [question]), plain)


def test_pruning_goes_on_after_the_prefix(llama: Model, context: list[int]) -> None:
    prefix = compress_prefix(llama, [context], HALF)
    assert prefix.kept.lengths == [CONTEXT, 16, 16]
    cache = prefix.cache(llama)
    tokens, mask = left_padded((CONTEXT + 12,))
    feed(llama.network, cache, tokens, mask, CONTEXT, CONTEXT + 12)
    assert cache.lengths == [CONTEXT + 12, 14, 14]
    assert prefix.kept.lengths == [CONTEXT, 16, 16]


def test_a_saved_prefix_gives_the_same_answers(llama: Model, context: list[int], tmp_path: Path) -> None:
    prefix, questions = compress_prefix(llama, [context], HALF), [some_tokens(3).tolist(), some_tokens(12).tolist()]
    save_prefix(prefix, tmp_path / "book.safetensors")
    again = load_prefix(tmp_path / "book.safetensors", llama)
    assert (again.tokens, again.compress, again.identity) == (prefix.tokens, prefix.compress, prefix.identity)
    assert all(torch.equal(old, new) for old, new in zip(state(prefix), state(again), strict=True))
    assert torch.equal(answers(llama, again, questions), answers(llama, prefix, questions))
    assert [path.name for path in tmp_path.iterdir()] == ["book.safetensors"]


def test_the_header_says_what_it_is(prefix: Prefix, tmp_path: Path) -> None:
    save_prefix(prefix, tmp_path / "book.safetensors")
    with safe_open(tmp_path / "book.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["sinkscope_prefix"])
    assert header["format_version"] == 2
    assert header["tokens"] == list(prefix.tokens)
    assert header["model"]["family"] == "causal-lm"
    assert header["model"]["dtype"] == "float64"
    assert header["model"]["revision"] is None
    assert header["compression"] == Compress("key-norm", 0.4).to_dict()


def test_a_broken_write_leaves_what_was_there(
    llama: Model, prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "book.safetensors"
    save_prefix(prefix, path)
    before = path.read_bytes()

    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(UserError, match=r"can't be written .*no space left"):
        save_prefix(compress_prefix(llama, [[20, 21, 22]], HALF), path, overwrite=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_overwritten_unasked(prefix: Prefix, tmp_path: Path) -> None:
    save_prefix(prefix, tmp_path / "book.safetensors")
    with pytest.raises(UserError, match="exists already"):
        save_prefix(prefix, tmp_path / "book.safetensors")
    save_prefix(prefix, tmp_path / "book.safetensors", overwrite=True)
    with pytest.raises(UserError, match="is a folder"):
        save_prefix(prefix, tmp_path, overwrite=True)
    with pytest.raises(UserError, match="can't be written"):
        save_prefix(prefix, tmp_path / "nowhere" / "book.safetensors")
    with pytest.raises(UserError, match="can't be written") as caught:
        save_prefix(prefix, tmp_path / ("b" * 256))
    assert "\n" not in str(caught.value)


def test_another_model_is_refused(llama: Model, prefix: Prefix, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "book.safetensors"
    save_prefix(prefix, path)
    other = load_model(save_kind("llama", tmp_path, seed=8), dtype="float64", device="cpu")
    half = load_model(folder / "llama", dtype="bfloat16", device="cpu")
    revised = Model(llama.network, llama.tokenizer, llama.family, llama.name, "4c1e")
    for model, fault in ((other, "with other weights"), (half, "with"), (revised, "with revision None, not 4c1e")):
        with pytest.raises(UserError, match=f"was made by .*llama {fault}") as caught:
            load_prefix(path, model)
        assert "\n" not in str(caught.value)
        with pytest.raises(UserError, match=f"the prefix was made by .*llama {fault}"):
            ss.generate(model, [[20, 21]], SETTINGS, compression=prefix)
    with pytest.raises(UserError, match="with"):
        prefix.cache(other)


def test_what_is_no_prefix_is_refused(llama: Model, prefix: Prefix, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        load_prefix(tmp_path / "nothing.safetensors", llama)
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="holds no compressed prefix"):
        load_prefix(tmp_path / "other.safetensors", llama)
    path = tmp_path / "book.safetensors"
    save_prefix(prefix, path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["sinkscope_prefix"])
    newer = {"sinkscope_prefix": json.dumps({**header, "format_version": 3})}
    save_file(load_file(path), tmp_path / "newer.safetensors", metadata=newer)
    with pytest.raises(UserError, match="has format 3, this version of sinkscope reads 2; make the prefix again"):
        load_prefix(tmp_path / "newer.safetensors", llama)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"can't be read .*; it is damaged, cut off or was never a prefix"):
        load_prefix(path, llama)


def rewritten(path: Path, **changes: object) -> Path:
    """The file with some of its header's entries changed, or left out where they are None."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["sinkscope_prefix"])
    header = {name: value for name, value in {**header, **changes}.items() if value is not None}
    other = path.with_name("other.safetensors")
    save_file(load_file(path), other, metadata={"sinkscope_prefix": json.dumps(header)})
    return other


def test_a_flipped_bit_is_noticed(llama: Model, prefix: Prefix, tmp_path: Path) -> None:
    """Anywhere among the tensors, and in numbers of the header."""
    path = tmp_path / "book.safetensors"
    save_prefix(prefix, path)
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    for place in torch.randint(begin, len(whole), (60,)).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"can't be read: it is not what was written \(SHA-256\)") as caught:
            load_prefix(path, llama)
        assert "\n" not in str(caught.value)
    path.write_bytes(whole)
    for changes in ({"tokens": [5, *prefix.tokens[1:]]}, {"compression": Compress("key-norm", 0.3).to_dict()}):
        with pytest.raises(UserError, match="it is not what was written"):
            load_prefix(rewritten(path, **changes), llama)
    assert load_prefix(rewritten(path), llama).tokens == prefix.tokens


def test_a_damaged_header_is_no_traceback(llama: Model, prefix: Prefix, tmp_path: Path) -> None:
    path, other = tmp_path / "book.safetensors", tmp_path / "other.safetensors"
    save_prefix(prefix, path)
    fault = "can't be read .*; it is damaged, cut off or was never a prefix"
    for changes in ({"format_version": None}, {"sha256": None}):
        with pytest.raises(UserError, match=fault):
            load_prefix(rewritten(path, **changes), llama)
    for header in ("{", "[2]", "7", '"book"'):
        save_file(load_file(path), other, metadata={"sinkscope_prefix": header})
        with pytest.raises(UserError, match=fault) as caught:
            load_prefix(other, llama)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["model", "tokens", "layers", "compression"])
def test_a_header_that_lacks_something(
    llama: Model, prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """By whoever wrote it: the digest is right."""
    path = tmp_path / "book.safetensors"
    save_prefix(prefix, path)
    monkeypatch.setattr("sinkscope.compression.saved._digest", lambda *_: "same")
    with pytest.raises(UserError, match=f"can't be read .*'{missing}'.*; it is damaged, cut off"):
        load_prefix(rewritten(path, sha256="same", **{missing: None}), llama)


def test_contexts_and_questions_that_do_not_fit(llama: Model, prefix: Prefix) -> None:
    with pytest.raises(UserError, match="a prefix holds one context, got 2"):
        compress_prefix(llama, [[20, 21], [22]], HALF)
    with pytest.raises(UserError, match=r"a prefix of 128 tokens leaves no room for a question: .* takes 128 in all"):
        compress_prefix(llama, [[20] * 128], Compress("key-norm", 0.5))
    with pytest.raises(UserError, match="a prompt of 121 tokens and max_new_tokens 8 make 129, the context is 128"):
        ss.generate(llama, [[20] * 90], ss.Decoding(max_new_tokens=8), compression=prefix)
    with pytest.raises(UserError, match="can't be recorded after a prefix"):
        ss.record(llama, [[20, 21]], SETTINGS, out="nowhere", compression=prefix)


def test_sliding_windows_take_questions_of_one_length(folder: Path, context: list[int]) -> None:
    """Padding between prefix and question would move the window of the shorter one."""
    model = load_kind("qwen2", folder)
    prefix = compress_prefix(model, [context], Compress("key-norm", 0.5))
    with pytest.raises(UserError, match="has sliding windows: after a prefix its questions must be of one length"):
        ss.generate(model, [[20, 21], [22]], SETTINGS, compression=prefix)
    together = answers(model, prefix, [[20, 21], [22, 23]])
    for row, question in enumerate(([20, 21], [22, 23])):
        alone = answers(model, prefix, [question])[0]
        assert together[row, : len(alone)].tolist() == alone.tolist()


def test_random_keys_of_a_prefix_follow_its_seed(llama: Model, context: list[int]) -> None:
    def gone(seed: int) -> list[list[bool]]:
        prefix = compress_prefix(llama, [context], Compress("random", 0.5, seed=seed))
        return [one[0, 0].tolist() for one in dropped_from(prefix.kept, CONTEXT)]

    assert gone(1) == gone(1)
    assert gone(1) != gone(2)


def test_the_text_of_a_question_gets_no_special_tokens() -> None:
    model = load_model("twin-ar")
    assert model.tokenizer is not None
    context = model.tokenizer("Ann has 3 old cups .")["input_ids"]
    prefix = compress_prefix(model, [context], Compress("key-norm", 1.0))
    written = ss.generate(
        model, "How many cups does Ann have ?", ss.Decoding(max_new_tokens=2), compression=prefix
    ).sequences[0]
    question = model.tokenizer("How many cups does Ann have ?", add_special_tokens=False)["input_ids"]
    assert written[: len(context) + len(question)].tolist() == [*context, *question]


@pytest.mark.parametrize("control", ["random", "equal-mass"])
def test_controls_after_a_prefix_are_drawn_beside_a_longer_question_as_alone(
    llama: Model, context: list[int], control: str
) -> None:
    """Padding stands between the prefix and a short question: what is drawn there is no key's."""
    torch.manual_seed(11)
    whole = compress_prefix(llama, [context], Compress("key-norm", 1.0))
    questions = [some_tokens(length).tolist() for length in (2, 13)]
    masking = ss.MaskSinks(3, control=control, seed=7)
    seeds = [1, 2]
    lost = []
    for asked, drawn in ((questions, seeds), (questions[:1], seeds[:1]), (questions[1:], seeds[1:])):
        steps = list(ss.decode(llama, asked, SETTINGS, seeds=drawn, intervention=masking, compression=whole))
        lost.append(torch.stack([step.removed.chosen_mass for step in steps if step.removed is not None]))
    together, *alone = lost
    torch.testing.assert_close(together, torch.cat(alone, dim=1), atol=1e-4, rtol=1e-4)
    assert (together[1:] > 0).all()
