"""Weight files: whole or cut off, one or many, and whether they are the weights that the configuration tells of."""

import pickle
from pathlib import Path

import pytest
import torch
from family_checkpoints import Weights, changed_copy, sharded_copy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from sinkscope.errors import UserError
from sinkscope.families import describe_model, load_model
from sinkscope.families.checkpoint import resolve
from sinkscope.families.stored import common_dtype, read_stored

IDS = torch.tensor([[3, 141, 59, 26, 255, 255, 89]])


def _logits(folder: Path) -> torch.Tensor:
    logits: torch.Tensor = load_model(folder, device="cpu").network(IDS).logits
    return logits


def test_headers_tell_what_the_file_holds(fixtures: Path) -> None:
    content = load_file(fixtures / "llada-tiny" / "model.safetensors")
    stored = read_stored(resolve(fixtures / "llada-tiny"))
    assert {name: tensor.shape for name, tensor in stored.items()} == {n: tuple(w.shape) for n, w in content.items()}
    assert common_dtype(stored) == "F32"
    assert sum(tensor.size for tensor in stored.values()) == sum(weight.numel() for weight in content.values())


@pytest.mark.parametrize("name", ["llada-tiny", "dream-tiny"])
def test_shards_are_the_whole(fixtures: Path, tmp_path: Path, name: str) -> None:
    folder = sharded_copy(fixtures / name, tmp_path / "sharded", shards=3)
    assert len(resolve(folder).weight_files()) == 3
    assert torch.equal(_logits(folder), _logits(fixtures / name))
    assert describe_model(folder).parameters == describe_model(fixtures / name).parameters


def test_missing_shard_is_named(fixtures: Path, tmp_path: Path) -> None:
    folder = sharded_copy(fixtures / "llada-tiny", tmp_path / "sharded", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"1 of 3 shards are missing: model-00002-of-00003\.safetensors"):
        load_model(folder)


@pytest.mark.parametrize("text", ["{}", "[1]", "{", '{"weight_map": 3}'])
def test_index_that_is_none(fixtures: Path, tmp_path: Path, text: str) -> None:
    folder = sharded_copy(fixtures / "llada-tiny", tmp_path / "sharded", shards=2)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=r"index\.json"):
        load_model(folder)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_cut_file_is_seen_before_loading(fixtures: Path, tmp_path: Path, share: float) -> None:
    folder = changed_copy(fixtures / "llada-gqa-tiny", tmp_path / "cut")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: int(share * len(whole))])
    for way in (load_model, describe_model):
        with pytest.raises(UserError, match=r"model\.safetensors: truncated"):
            way(folder)


@pytest.mark.parametrize(
    "content", [b"\x05\0\0\0\0\0\0\0[1,2]", b"\x09\0\0\0\0\0\0\0not json!", b"\x08\0\0\0\0\0\0\0" + b'{"a": 1}']
)
def test_file_that_is_no_safetensors(fixtures: Path, tmp_path: Path, content: bytes) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "other")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="not a safetensors file"):
        load_model(folder)


def test_folder_without_weights_and_folder_without_config(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "empty")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights in"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"no config\.json"):
        load_model(folder)


def test_weights_file_without_weights(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "hollow", weights=lambda _: {})
    with pytest.raises(UserError, match="hold no weights"):
        load_model(folder)


def test_missing_weights_are_named(fixtures: Path, tmp_path: Path) -> None:
    def drop(weights: Weights) -> Weights:
        return {name: weight for name, weight in weights.items() if ".1.ff_proj" not in name}

    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "less", weights=drop)
    with pytest.raises(UserError, match=r"1 weights are missing: model\.layers\.1\.mlp\.gate_proj\.weight"):
        load_model(folder)


def test_surplus_weights_are_named(fixtures: Path, tmp_path: Path) -> None:
    def add(weights: Weights) -> Weights:
        return weights | {"model.transformer.blocks.0.q_norm.weight": torch.ones(16)}

    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "more", weights=add)
    with pytest.raises(UserError, match=r"1 weights are surplus: model\.transformer\.blocks\.0\.q_norm\.weight"):
        load_model(folder)


def test_config_with_fewer_layers_than_weights(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "fewer", {"n_layers": 2})
    with pytest.raises(UserError, match=r"9 weights are surplus: .*blocks\.2\..* and 4 more"):
        load_model(folder)


def test_config_of_another_shape(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "wider", {"intermediate_size": 97})
    with pytest.raises(UserError, match=r"down_proj\.weight is \[64, 96\], wanted \[64, 97\]"):
        load_model(folder)


def test_computed_buffers_may_be_left_over(fixtures: Path, tmp_path: Path) -> None:
    def add(weights: Weights) -> Weights:
        return weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}

    folder = changed_copy(fixtures / "dream-tiny", tmp_path / "old", weights=add)
    assert torch.equal(_logits(folder), _logits(fixtures / "dream-tiny"))


def test_tied_weights_equal_the_same_weights_untied(fixtures: Path, tmp_path: Path) -> None:
    head, table = "model.transformer.ff_out.weight", "model.transformer.wte.weight"

    def without_head(weights: Weights) -> Weights:
        return {name: weight for name, weight in weights.items() if name != head}

    def repeated(weights: Weights) -> Weights:
        return weights | {head: weights[table].clone()}

    source = fixtures / "llada-tiny"
    tied = changed_copy(source, tmp_path / "tied", {"weight_tying": True}, weights=without_head)
    untied = changed_copy(source, tmp_path / "untied", {"weight_tying": False}, weights=repeated)
    assert torch.equal(_logits(tied), _logits(untied))
    assert not torch.equal(_logits(tied), _logits(source))
    # The table of 256 x 64 counts once.
    assert describe_model(untied).parameters - describe_model(tied).parameters == 256 * 64


def test_untied_config_misses_the_head(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(
        fixtures / "llada-tiny",
        tmp_path / "headless",
        weights=lambda weights: {name: w for name, w in weights.items() if name != "model.transformer.ff_out.weight"},
    )
    with pytest.raises(UserError, match=r"missing: lm_head\.weight"):
        load_model(folder)


def test_embedding_size_beyond_the_vocabulary(fixtures: Path, tmp_path: Path) -> None:
    folder = changed_copy(fixtures / "llada-tiny", tmp_path / "padded", {"vocab_size": 251, "embedding_size": 256})
    assert torch.equal(_logits(folder), _logits(fixtures / "llada-tiny"))
    same = changed_copy(fixtures / "llada-tiny", tmp_path / "same", {"embedding_size": None})
    assert torch.equal(_logits(same), _logits(fixtures / "llada-tiny"))


def _as_pickle(source: Path, target: Path, *, legacy: bool) -> Path:
    folder = changed_copy(source, target)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    return folder


@pytest.mark.parametrize("legacy", [False, True])
def test_local_pickle_of_weights(fixtures: Path, tmp_path: Path, legacy: bool) -> None:
    folder = _as_pickle(fixtures / "dream-tiny", tmp_path / "pickle", legacy=legacy)
    assert torch.equal(_logits(folder), _logits(fixtures / "dream-tiny"))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("kept", [0, 100, 5000, 400_000])
def test_cut_pickle(fixtures: Path, tmp_path: Path, legacy: bool, kept: int) -> None:
    folder = _as_pickle(fixtures / "dream-tiny", tmp_path / "pickle", legacy=legacy)
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[:kept])
    with pytest.raises(UserError, match=r"pytorch_model\.bin: truncated"):
        load_model(folder)


class _Bomb:
    """Unpickled, it makes a file: what remote code in a pickle would do."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.target,)


def test_pickle_cannot_run_code(fixtures: Path, tmp_path: Path) -> None:
    folder = _as_pickle(fixtures / "dream-tiny", tmp_path / "pickle", legacy=False)
    mark = tmp_path / "the code ran"
    torch.save({"weight": _Bomb(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="not plain weights"):
        load_model(folder)
    assert not mark.exists()
    pickle.loads(pickle.dumps(_Bomb(mark)))
    assert mark.exists()  # the bomb itself works
