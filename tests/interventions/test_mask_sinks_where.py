"""Where keys are cut: read from the maps of every pass, in which a cut key receives exactly nothing."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from cut_maps import Seen, doubled_precision, passes, strongest
from transformers import MistralConfig, MistralForCausalLM

from sinkscope.decoding import Decoding, Denoising
from sinkscope.decoding.settings import Settings
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.language.vocabulary import WORDS
from sinkscope.sinks import Excess, First, Threshold

PROMPT = [5, 9, 2, 8, 1, 4, 6]
PROMPTS = [[7, 3, 11], PROMPT, [13, 40]]
SETTINGS = Denoising(gen_length=8, block_length=4, steps=None)
MASK = 255


@pytest.fixture(scope="module")
def model(tiny: Callable[[str], Model]) -> Model:
    return doubled_precision(tiny("llada-tiny"))


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    return doubled_precision(load_model(causal_folder, dtype="float32", device="cpu"))


def expected(before: Seen, row: int, count: int) -> torch.Tensor:
    """The keys that the published protocol cuts after this pass, (layer, head, key)."""
    return strongest(before.received(row), count)


def test_the_strongest_keys_of_the_step_before_receive_nothing(model: Model) -> None:
    seen = passes(model, PROMPT, SETTINGS, MaskSinks(3))
    assert not bool(seen[0].lost(0).any())
    for before, now in pairwise(seen):
        assert torch.equal(now.lost(0), expected(before, 0, 3))
        torch.testing.assert_close(now.received(0).sum(-1), torch.ones(3, 4, dtype=torch.float64))


def test_of_an_autoregressive_model_those_of_the_last_query(causal: Model) -> None:
    seen = passes(causal, PROMPT, Decoding(max_new_tokens=9), MaskSinks(2))
    for before, now in pairwise(seen):
        last = before.maps[:, 0, :, -1]
        assert torch.equal(now.lost(0)[..., :-1], strongest(last, 2))
        assert not bool(now.lost(0)[..., -1].any()), "a key that was not there before is not cut"


def test_top_k_of_a_masked_run_alternates_and_of_a_clean_one_does_not(model: Model, causal: Model) -> None:
    def again(model: Model, settings: Settings, source: str) -> float:
        seen = passes(model, PROMPT, settings, MaskSinks(2, detect_from=source))
        return sum(float(now.step.removed.repeated_keys) for now in seen if now.step.removed is not None)

    assert again(model, SETTINGS, "masked") == again(causal, Decoding(max_new_tokens=9), "masked") == 0
    assert again(model, SETTINGS, "clean") > 20
    assert again(causal, Decoding(max_new_tokens=9), "clean") > 20


def test_only_in_the_steps_named(model: Model) -> None:
    for detect in ("previous", "same"):
        seen = passes(model, PROMPT, SETTINGS, MaskSinks(2, detect=detect, first_step=2, last_step=4))
        often = [int(one.lost(0).sum()) for one in seen]
        assert often == [0, 0, 24, 24, 24, 0, 0, 0]  # 3 layers of 4 heads lose 2 keys
        plain = passes(model, PROMPT, SETTINGS, None)
        assert all(torch.equal(one.maps, other.maps) for one, other in zip(seen[:2], plain[:2], strict=True))
        assert [one.step.removed.keys.tolist() for one in seen if one.step.removed is not None] == [
            [float(count)] for count in often
        ]


def test_only_in_the_layers_and_heads_named(model: Model) -> None:
    wanted = torch.zeros(3, 4, 1, dtype=torch.bool)
    for layers, heads in (((0, 2), None), (None, (3, 1)), ((1,), (0,))):
        inside = wanted.clone()
        for layer in layers or range(3):
            for head in heads or range(4):
                inside[layer, head] = True
        seen = passes(model, PROMPT, SETTINGS, MaskSinks(3, layers=layers, heads=heads))
        for before, now in pairwise(seen):
            assert torch.equal(now.lost(0), expected(before, 0, 3) & inside)


@pytest.mark.parametrize(
    ("queries", "atoms"),
    [
        (("masked",), ("block-masked", "later")),
        (("prompt", "block-committed"), ("prompt", "block-committed")),
        (("all-committed", "committed"), ("committed", "block-committed")),
    ],
)
def test_only_for_the_queries_named(model: Model, queries: tuple[str, ...], atoms: tuple[str, ...]) -> None:
    seen = passes(model, PROMPT, SETTINGS, MaskSinks(2, queries=queries))
    for before, now in pairwise(seen):
        asked = now.of(0, *atoms)
        assert bool((now.maps[:, 0][:, :, ~asked] > 0).all())
        if asked.any():
            assert torch.equal(now.lost(0, asked), expected(before, 0, 2))
        share = now.maps[:, 0][:, :, asked].sum(-1)
        torch.testing.assert_close(share, torch.ones_like(share))


def test_only_keys_of_the_classes_named(model: Model) -> None:
    counts = []
    for kinds in (("mask",), ("prompt", "special"), ("other",)):
        seen = passes(model, PROMPT, SETTINGS, MaskSinks(4, classes=kinds))
        for before, now in pairwise(seen):
            tokens = now.step.seen[0]
            masked, early = tokens == MASK, torch.arange(15) < len(PROMPT)
            special = torch.isin(tokens, torch.tensor(model.family.special_ids)) & ~masked
            of_class = {
                "mask": masked,
                "prompt": early & ~special,
                "special": special,
                "other": ~(early | masked | special),
            }
            inside = torch.stack([of_class[kind] for kind in kinds]).any(0)
            assert torch.equal(now.lost(0), expected(before, 0, 4) & inside)
            counts.append(int(now.lost(0).sum()))
            assert now.step.removed is not None
            assert float(now.step.removed.mask_keys) == int((now.lost(0) & masked).sum())
    assert min(counts) < max(counts)


def test_classes_of_a_tokenizer(twin_folders: dict[str, Path]) -> None:
    twin = doubled_precision(load_model(twin_folders["twin-dlm"], dtype="float32", device="cpu"))
    seen = passes(twin, "Ann has 3 books. Bo has 2 books. How many?", SETTINGS, MaskSinks(6, classes=("punctuation",)))
    total = 0
    for before, now in pairwise(seen):
        signs = torch.tensor([WORDS[token] in (".", ",", "?", ":", "+", "-", "=", "=>") for token in now.step.seen[0]])
        assert torch.equal(now.lost(0), expected(before, 0, 6) & signs)
        total += int(now.lost(0).sum())
    assert total > 10


def test_padding_is_neither_cut_nor_counted(model: Model) -> None:
    """The first keys of a padded row are its own first tokens, and its heads lose as many keys as those of others."""
    for intervention in (
        MaskSinks(First(2)),
        MaskSinks(2),
        MaskSinks(2, control="lowest"),
        MaskSinks(2, control="random"),
    ):
        for now in passes(model, PROMPTS, SETTINGS, intervention)[1:]:
            for row, prompt in enumerate(PROMPTS):
                padding = len(PROMPT) - len(prompt)
                lost = now.lost(row)
                assert bool(lost[..., :padding].all()), "padding receives nothing, cut or not"
                assert lost[..., padding:].sum(-1).tolist() == [[2] * 4] * 3
                if intervention.keys == First(2):
                    assert bool(lost[..., padding : padding + 2].all())
            assert now.step.removed is not None
            assert now.step.removed.keys.tolist() == [24.0] * 3
            assert now.step.removed.units.tolist() == [12.0] * 3


def test_the_clean_run_beside_loses_nothing(model: Model) -> None:
    plain = passes(model, PROMPTS, SETTINGS, None)
    for intervention in (
        MaskSinks(2, detect_from="clean"),
        MaskSinks(2, detect_from="clean", detect="same", first_step=0),
    ):
        seen = passes(model, PROMPTS, SETTINGS, intervention)
        for number, now in enumerate(seen):
            assert now.maps.shape[1] == 6
            shown = now if intervention.detect == "same" else seen[number - 1]
            for row, prompt in enumerate(PROMPTS):
                padding = len(PROMPT) - len(prompt)
                copied = now.maps[:, row + 3][:, :, now.real(row)]
                assert bool((copied[..., padding:] > 0).all())
                if number >= intervention.first_step:
                    clean = shown.maps[:, row + 3][:, :, shown.real(row)].mean(2)
                    assert torch.equal(now.lost(row)[..., padding:], strongest(clean[..., padding:], 2))
        torch.testing.assert_close(seen[0].maps[:, 3:], plain[0].maps)


def test_controls_never_cut_a_sink(model: Model) -> None:
    """And cut as many keys, or about as much attention, or as many masks, as they should."""
    for name in ("random", "lowest", "mask-matched", "equal-mass"):
        seen = passes(model, PROMPT, SETTINGS, MaskSinks(2, control=name))
        for before, now in pairwise(seen):
            received, sinks, lost = before.received(0), expected(before, 0, 2), now.lost(0)
            assert not bool((lost & sinks).any())
            removed, masked = now.step.removed, now.step.seen[0] == MASK
            assert removed is not None
            assert float(removed.keys) == int(lost.sum())
            assert float(removed.mask_keys) == int((lost & masked).sum())
            assert float(removed.wanted_mass) == pytest.approx(float(received[sinks].sum()), abs=1e-5)
            assert float(removed.chosen_mass) == pytest.approx(float(received[lost].sum()), abs=1e-5)
            assert float(removed.units) == 12
            if name in ("random", "lowest"):
                assert lost.sum(-1).tolist() == [[2] * 4] * 3
            if name == "mask-matched":
                wanted = (sinks & masked).sum(-1)
                room = int(masked.sum()) - wanted
                assert torch.equal((lost & masked).sum(-1), torch.minimum(wanted, room))
            if name == "lowest":
                assert torch.equal(lost, strongest(-received, 2))


def test_the_first_token_of_a_text_always(causal: Model, model: Model) -> None:
    for one, settings in ((causal, Decoding(max_new_tokens=9)), (model, SETTINGS)):
        for now in passes(one, PROMPTS, settings, MaskSinks(First(1)))[1:]:
            for row in [row for row in range(3) if bool(now.step.takes_part[row])]:
                padding = len(PROMPT) - len(PROMPTS[row])
                lost = now.lost(row)
                assert bool(lost[..., padding].all())
                assert not bool(lost[..., padding + 1 :].any())


@pytest.mark.parametrize(
    "intervention", [MaskSinks(Excess(0.7)), MaskSinks(Threshold(0.2)), MaskSinks(Excess(20.0, "percent"))]
)
def test_other_rules_mark_as_many_as_they_find(model: Model, intervention: MaskSinks) -> None:
    counts = set()
    for before, now in pairwise(passes(model, PROMPT, SETTINGS, intervention)):
        received = before.received(0)
        others = (1 - received) / 14  # of 15 keys
        found = {
            "Excess(epsilon=0.7, scale='sum')": 15 * (received - others) > 0.7,
            "Threshold(value=0.2)": received > 0.2,
            "Excess(epsilon=20.0, scale='percent')": 100 * (received - others) > 20,
        }[str(intervention.rule)]
        assert torch.equal(now.lost(0), found)
        counts |= set(found.sum(-1).flatten().tolist())
        assert now.step.removed is not None
        assert float(now.step.removed.units) == int(found.any(-1).sum())
    assert len(counts) > 2


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """An autoregressive model that sees 5 tokens, with a cache that forgets the rest."""
    config = MistralConfig(
        hidden_size=48, intermediate_size=71, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=101, initializer_range=0.3, sliding_window=5, max_position_embeddings=64, eos_token_id=100,
        bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "sliding"
    torch.manual_seed(4)
    MistralForCausalLM(config).save_pretrained(folder)
    return doubled_precision(load_model(folder, dtype="float32", device="cpu"))


def test_over_a_sliding_cache(sliding: Model) -> None:
    """Maps of neighbouring steps lie over other columns; the key that fell out of sight is no candidate."""
    for prompt in ([5, 9, 2], PROMPT):
        seen = passes(sliding, prompt, Decoding(max_new_tokens=9), MaskSinks(2))
        assert len(seen) == 9
        for before, now in pairwise(seen):
            last = before.maps[:, 0, :, -1]
            columns = range(before.step.seen.shape[1] - last.shape[-1], before.step.seen.shape[1])
            here = range(now.step.seen.shape[1] - now.maps.shape[-1], now.step.seen.shape[1])
            assert len(here) <= 5
            both = [column for column in columns if column in here]
            shown = last[..., [columns.index(column) for column in both]]
            lost = now.lost(0)
            assert torch.equal(lost[..., [here.index(column) for column in both]], strongest(shown, 2))
            assert not bool(lost[..., -1].any())


def test_guidance_cuts_each_half_by_its_own_map(model: Model) -> None:
    seen = passes(model, PROMPT, replace(SETTINGS, cfg_scale=0.5), MaskSinks(2))
    differ = False
    for before, now in pairwise(seen):
        assert now.maps.shape[1] == 2
        for half in range(2):
            lost = (now.maps[:, half] == 0).all(2)
            assert torch.equal(lost, strongest(before.maps[:, half].mean(2), 2))
        differ |= not torch.equal((now.maps[:, 0] == 0).all(2), (now.maps[:, 1] == 0).all(2))
    assert differ


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_over_block_caches_by_the_queries_that_were_fed(model: Model, cache: str) -> None:
    for folder_settings in (replace(SETTINGS, cache=cache), replace(SETTINGS, cache=cache, threshold=0.05)):
        seen = passes(model, PROMPT, folder_settings, MaskSinks(2))
        fed = {now.step.queries for now in seen}
        assert len(fed) > 1
        for before, now in pairwise(seen):
            assert now.maps.shape[-2:] == (now.step.queries[1] - now.step.queries[0], 15)
            assert torch.equal(now.lost(0), expected(before, 0, 2))
