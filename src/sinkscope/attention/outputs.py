"""What of a head's output comes through which key, and what rank the output has: the marks of two kinds of sinks.

With the attention a_qk that query q pays to key k and the values v_k, the output of a head is o_q = sum_k a_qk v_k. A
sink that is a no-operation has a small value, so that the attention parked there writes next to nothing; one that
broadcasts writes the same vector for every query, so that the head's output has a low rank (Fesser et al., arXiv
2606.08105; their code is github.com/KempnerInstitute/attention_sink). Kept for every key k, as means over the queries:

    norm share    ||a_qk v_k|| / ||o_q||             in size; shares of keys that cancel each other make more than 1
    output share  <a_qk v_k, o_q> / ||o_q||^2        along the output; the keys' shares make 1, and may be negative

and for the matrix O of all outputs (query, dim) the stable rank ||O||_F^2 / sigma_1^2, as in the authors' code
(1: all queries get multiples of one vector; not centred). It is taken whole, without what comes through the key that
receives most, and without what comes through another one, to compare with: of the other keys that receive anything the
middle one. Rows are not scaled up for what was taken out.

A second sweep over the probabilities is made once it is known what the keys receive, in O(chunk x L) memory: it costs
about as much as a layer's attention again, and an eigenvalue of three matrices (dim, dim) a head.

Where it misleads: values and outputs are those of the head, before the output projection. The authors' class of
broadcast sinks takes both after it.
"""

from dataclasses import dataclass

import torch

from sinkscope.attention.given import Attention
from sinkscope.attention.kernels import probability_chunks
from sinkscope.ordering import ordered


@dataclass(frozen=True, kw_only=True)
class HeadOutputs:
    """The outputs of the heads of one layer (or, with a first dim `layer`, of all) by where they come from.

    NaN: shares where no counted query has an output that is not zero, ranks of an output that is zero everywhere, and
    `rank_without_other` where no other key receives anything.
    """

    value_norm: torch.Tensor  # (batch, head, key): of the value that the head reads there
    norm_share: torch.Tensor  # (batch, head, key)
    output_share: torch.Tensor  # (batch, head, key): sums to 1 over keys
    top: torch.Tensor  # (batch, head): which key receives most, of equals the one further left
    output_norm: torch.Tensor  # (batch, head): ||o_q||, mean over the queries
    rank: torch.Tensor  # (batch, head): stable rank of the output
    rank_without_top: torch.Tensor  # (batch, head)
    rank_without_other: torch.Tensor  # (batch, head)


BY_KEY = ("value_norm", "norm_share", "output_share")


@torch.no_grad()
def head_outputs(attention: Attention, counted: torch.Tensor, received: torch.Tensor) -> HeadOutputs:
    """Go through a layer's attention once more.

    counted (batch, query) boolean: the queries that count. received (batch, head, key): means over those.
    """
    counted = counted.to(received.device)
    sums = _Sums(attention, counted, *_compared(received))
    for start, stop, probabilities in probability_chunks(attention):
        sums.add(probabilities * counted[:, None, start:stop, None])
    return sums.finish()


def _compared(received: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The key that receives most, the middle one of the others that receive anything, and whether there are others,
    each (batch, head)."""
    order = ordered(received)
    others = (received > 0).sum(-1) - 1
    middle = (1 + (others - 1).clamp(min=0) // 2).clamp(max=received.shape[-1] - 1)
    return order[..., 0], order.gather(-1, middle.unsqueeze(-1)).squeeze(-1), others > 0


class _Sums:
    """Adds up blocks of query rows."""

    def __init__(
        self,
        attention: Attention,
        counted: torch.Tensor,
        top: torch.Tensor,
        other: torch.Tensor,
        has_other: torch.Tensor,
    ) -> None:
        batch, heads, _, _ = attention.query.shape
        keys, dim = attention.value.shape[2:]
        exact = torch.promote_types(attention.query.dtype, torch.float32)
        self._value = attention.value.detach().to(exact)
        self._top, self._other, self._has_other = top, other, has_other
        self._sizes = self._value.new_zeros(batch, heads, keys)
        self._along = self._value.new_zeros(batch, heads, keys, dim)
        self._answered = self._value.new_zeros(batch, heads, 1)
        self._norms, self._counted = torch.zeros_like(self._answered), counted.sum(-1)[:, None, None]
        self._squares = self._value.new_zeros(3, batch, heads, dim, dim, dtype=torch.float64)

    @property
    def _by_head(self) -> torch.Tensor:
        """Values as the query heads read them, (batch, head, key, dim)."""
        return self._value.repeat_interleave(self._top.shape[1] // self._value.shape[1], dim=1)

    def add(self, probabilities: torch.Tensor) -> None:
        """Take some rows, (batch, head, row, key), zero where the query does not count."""
        seen = probabilities.shape[-1]
        # What comes through the strongest key may be nearly all: the rest is summed up, not left over from the whole.
        paid_top = _paid(probabilities, self._top)
        is_top = torch.arange(seen, device=probabilities.device) == self._top[..., None, None]
        without_top = self._mix(probabilities.masked_fill(is_top, 0.0))
        whole = without_top + paid_top * self._at(self._top)
        without_other = whole - _paid(probabilities, self._other) * self._at(self._other)
        for number, output in enumerate((whole, without_top, without_other)):
            self._squares[number] += output.mT.double() @ output.double()
        norm = torch.linalg.vector_norm(whole, dim=-1, keepdim=True)  # (batch, head, row, 1)
        some = norm > torch.finfo(norm.dtype).tiny
        inverse = torch.where(some, 1 / norm, 0)
        self._answered += some.sum(-2)
        self._norms += norm.sum(-2)
        self._sizes[..., :seen] += (inverse.mT @ probabilities).squeeze(-2)
        self._along[..., :seen, :] += probabilities.mT @ (whole * inverse * inverse)

    def finish(self) -> HeadOutputs:
        value, answered = self._by_head, self._answered.where(self._answered > 0, torch.nan)
        norm = torch.linalg.vector_norm(value, dim=-1)
        rank, without_top, without_other = _stable_ranks(self._squares).to(norm)
        return HeadOutputs(
            value_norm=norm,
            norm_share=self._sizes * norm / answered,
            output_share=(self._along * value).sum(-1) / answered,
            top=self._top,
            output_norm=(self._norms / self._counted).squeeze(-1),
            rank=rank,
            rank_without_top=without_top,
            rank_without_other=without_other.where(self._has_other, torch.nan),
        )

    def _mix(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Outputs (batch, head, row, dim) of probabilities (batch, head, row, key)."""
        batch, heads, rows, seen = probabilities.shape
        grouped = probabilities.view(batch, self._value.shape[1], -1, seen)
        return torch.matmul(grouped, self._value[:, :, :seen]).view(batch, heads, rows, -1)

    def _at(self, key: torch.Tensor) -> torch.Tensor:
        """The value that each head reads at its key (batch, head): (batch, head, 1, dim)."""
        serving = torch.arange(key.shape[1], device=key.device) * self._value.shape[1] // key.shape[1]
        batch = torch.arange(key.shape[0], device=key.device).unsqueeze(-1)
        return self._value[batch, serving, key].unsqueeze(-2)


def _paid(probabilities: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """What rows (batch, head, row, key) pay to the key of their head (batch, head): (batch, head, row, 1); nothing to
    one that they do not reach under a causal mask."""
    *_, rows, seen = probabilities.shape
    place = key[..., None, None].expand(-1, -1, rows, -1)
    return probabilities.gather(-1, place.clamp(max=seen - 1)) * (place < seen)


def _stable_ranks(squares: torch.Tensor) -> torch.Tensor:
    """||O||_F^2 / sigma_1^2 of every O^T O (..., dim, dim), (...,); NaN of one that is zero."""
    size = squares.diagonal(dim1=-2, dim2=-1).sum(-1)
    # One by one on a GPU, where small matrices are slow; in float32 the highest eigenvalue is right to its last digits.
    scaled = (squares / size.where(size > 0, 1)[..., None, None]).float().cpu()
    highest = torch.linalg.eigvalsh(scaled)[..., -1].to(size)
    return torch.where(size > 0, 1 / highest, torch.nan)
