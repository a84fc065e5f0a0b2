"""The laboratory's networks: every form of attention against plain loops in float64, the stock one against Llama."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from sinkscope.attention import watch
from sinkscope.lab.networks import Attending, configuration, initial_network
from sinkscope.lab.recipe import AttentionForm, LabRecipe, Objective, Positions
from sinkscope.language.chains import CHAIN_WORDS

FORMS = get_args(AttentionForm)


def attended(one: Attending, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """(row, query, head, dim): one query, one key at a time, from the definitions of each form."""
    rows, heads, length, dim = query.shape
    output = torch.zeros(rows, length, heads, dim, dtype=torch.float64)
    for row in range(rows):
        for head in range(heads):
            for i in range(length):
                seen = [j for j in range(length) if (j <= i or one.block_length is None) and (i >= one.alone or i == j)]
                weights = {j: float(query[row, head, i] @ key[row, head, j]) * scale for j in seen}
                values = {j: value[row, head, j] for j in seen}
                if one.form == "sigmoid":
                    shares = {j: 1 / (1 + math.exp(-(score - math.log(len(seen))))) for j, score in weights.items()}
                else:
                    if one.form == "softmax-off-by-one":
                        weights[-1], values[-1] = 0.0, torch.zeros(dim, dtype=torch.float64)
                    if one.form == "learned-sink":
                        weights[-1], values[-1] = float(one.sink[head]), torch.zeros(dim, dtype=torch.float64)
                    if one.form == "key-value-bias":
                        weights[-1] = float(query[row, head, i] @ one.bias_key[head]) * scale
                        values[-1] = one.bias_value[head]
                    whole = sum(math.exp(score) for score in weights.values())
                    shares = {j: math.exp(score) / whole for j, score in weights.items()}
                found = sum((share * values[j] for j, share in shares.items()), torch.zeros(dim, dtype=torch.float64))
                if one.form == "gated":
                    assert one.opening is not None
                    found = found * one.opening[row, i].view(heads, dim)[head]
                output[row, i, head] = found
    return output


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("objective", ["next-token", "masked-diffusion"])
def test_every_form_is_its_definition(form: AttentionForm, objective: Objective) -> None:
    recipe = LabRecipe(
        attention=form, width=24, heads=2, objective=objective, registers=1, registers_mode="see-themselves"
    )
    one = Attending(recipe).double()
    for weight in one.parameters():
        torch.nn.init.normal_(weight)
    query, key, value = torch.randn(3, 2, 2, 6, 12, dtype=torch.float64)
    if form == "gated":
        one.opening = torch.sigmoid(one.gate(torch.randn(2, 6, 24, dtype=torch.float64)))
    with torch.no_grad():
        found = one(query, key, value, 0.3)
        wanted = attended(one, query, key, value, 0.3)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)  # float64 both; sums in another order


@pytest.mark.parametrize("objective", ["next-token", "masked-diffusion"])
def test_the_stock_network_is_transformers_own(objective: Objective) -> None:
    recipe = LabRecipe(width=32, objective=objective, seed=7)
    network = initial_network(recipe).eval()
    stock: Any = LlamaForCausalLM(configuration(recipe))
    stock.eval()
    stock.load_state_dict({name.removeprefix("llama."): weight for name, weight in network.state_dict().items()})
    stock.config.is_causal = objective == "next-token"
    stock.set_attn_implementation("sinkscope")
    tokens = torch.randint(3, len(CHAIN_WORDS), (3, 20))
    with torch.no_grad(), network.mapped() as maps, watch(stock) as watched:
        torch.testing.assert_close(network(tokens), stock(tokens, use_cache=False).logits, rtol=1e-4, atol=1e-5)
    received = torch.stack([layer.mean(2) for layer in maps.probabilities])
    torch.testing.assert_close(received, watched.received, rtol=1e-4, atol=1e-6)


def test_a_hidden_key_is_seen_by_itself_alone() -> None:
    network = initial_network(LabRecipe(width=32, objective="masked-diffusion")).eval()
    tokens = torch.randint(3, len(CHAIN_WORDS), (2, 9))
    cut = torch.zeros(2, 4, 9, dtype=torch.bool)
    cut[0, 1, 4] = True
    with torch.no_grad(), network.cutting([cut] * 3), network.mapped() as maps:
        network(tokens)
    for layer in maps.probabilities:
        column = layer[0, 1, :, 4]
        assert column[4] > 0
        assert column[[0, 1, 2, 3, 5, 6, 7, 8]].abs().max() == 0
        torch.testing.assert_close(layer.sum(-1), torch.ones_like(layer.sum(-1)))
        assert (layer[1, 1, :, 4] > 0).all()


@pytest.mark.parametrize("positions", ["learned", "none"])
def test_without_rotation_a_pass_knows_places_only_where_they_are_learnt(positions: Positions) -> None:
    network = initial_network(LabRecipe(width=32, objective="masked-diffusion", positions=positions)).eval()
    tokens = torch.randint(3, len(CHAIN_WORDS), (1, 10))
    order = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    with torch.no_grad():
        apart = (network(tokens)[:, order] - network(tokens[:, order])).abs().max()
    assert (apart < 1e-5) == (positions == "none")
