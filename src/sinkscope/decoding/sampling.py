"""From logits to predicted tokens: suppression, top-k, top-p, Gumbel noise. Shared by `denoise` and `decode`.

Noise is drawn on the CPU in float64 with one generator a row, seeded by the prompt: a row gets the same noise alone, in
any batch, and on any device.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How tokens are chosen from logits (candidate, token).

    never: ids that are never predicted. tempered: whether `probabilities` are taken after the temperature.
    """

    temperature: float
    top_p: float | None
    top_k: int | None
    suppress: tuple[int, ...]
    never: tuple[int, ...]
    tempered: bool

    def choose(
        self, logits: torch.Tensor, rows: torch.Tensor, noise: Sequence[torch.Generator]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (candidate,) and probabilities (candidate, token) float32.

        `rows` (candidate,): which generator of `noise` a candidate draws from; candidates of a row come together, rows
        ascending. Ids in `never` keep their share of the probability, as in the references, but are not chosen.
        """
        logits = logits.float()
        if self.suppress:
            logits = logits.index_fill(-1, torch.tensor(self.suppress, device=logits.device), -torch.inf)
        scaled = logits / self.temperature if self.temperature > 0 else logits
        kept = self._filter(scaled)
        probabilities = torch.softmax(torch.where(kept, scaled if self.tempered else logits, -torch.inf), dim=-1)
        choosable = self._choosable(scaled, kept)
        if self.temperature > 0:
            choosable = choosable.double() + gumbel(logits.shape, rows, noise).to(logits.device)
        return choosable.argmax(-1), probabilities

    def _choosable(self, scaled: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Scaled logits with everything that can't be chosen at -inf.

        Where the filters leave nothing, they are ignored.
        """
        allowed = scaled
        if self.never:
            allowed = scaled.index_fill(-1, torch.tensor(self.never, device=scaled.device), -torch.inf)
        filtered = torch.where(kept, allowed, -torch.inf)
        empty = filtered.amax(-1, keepdim=True) == -torch.inf
        return torch.where(empty, allowed, filtered)

    def _filter(self, scaled: torch.Tensor) -> torch.Tensor:
        """Which tokens top-p, then top-k, keep; (candidate, token) boolean."""
        kept = torch.ones_like(scaled, dtype=torch.bool)
        if self.top_p is not None and self.top_p < 1:
            order = scaled.argsort(dim=-1, descending=True, stable=True)
            sorted_probabilities = torch.softmax(scaled, dim=-1).gather(-1, order)
            before = sorted_probabilities.cumsum(-1) - sorted_probabilities
            kept = torch.zeros_like(kept).scatter(-1, order, before <= self.top_p)
        if self.top_k is not None and self.top_k < scaled.shape[-1]:
            left = torch.where(kept, scaled, -torch.inf)
            kept = kept & (left >= left.topk(self.top_k, dim=-1).values[..., -1:])
        return kept


def row_generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """One CPU generator a row."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def prompt_seeds(prompts: Sequence[Sequence[int]], seed: int, seen: Counter[bytes] | None = None) -> list[int]:
    """A seed a prompt, from the user's seed, the prompt's token ids, and how often the same prompt came before.

    `seen` carries the count over several batches.
    """
    seen = Counter() if seen is None else seen
    seeds = []
    for tokens in prompts:
        key = hashlib.sha256(repr(list(tokens)).encode()).digest()
        digest = hashlib.sha256(key + f"{seed}/{seen[key]}".encode()).digest()
        seen[key] += 1
        seeds.append(int.from_bytes(digest[:8], "big") >> 1)
    return seeds


def uniform_noise(rows: torch.Tensor, noise: Sequence[torch.Generator]) -> torch.Tensor:
    """Uniform noise in [0, 1), (candidate,) float64, each candidate from its row's generator."""
    counts = torch.bincount(rows.cpu(), minlength=len(noise)).tolist()
    return torch.cat([torch.rand(n, dtype=torch.float64, generator=g) for n, g in zip(counts, noise, strict=True)])


def gumbel(shape: Sequence[int], rows: torch.Tensor, noise: Sequence[torch.Generator]) -> torch.Tensor:
    """Gumbel noise of a shape (candidate, ...) float64, each candidate from its row's generator. Added to log weights,
    the k highest are k draws by the weights without replacement."""
    counts = torch.bincount(rows.cpu(), minlength=len(noise)).tolist()
    drawn = [torch.rand(n, *shape[1:], dtype=torch.float64, generator=g) for n, g in zip(counts, noise, strict=True)]
    # A draw of exactly 0 would be an infinite disadvantage, not a small one.
    return -torch.log(-torch.log(torch.cat(drawn).clamp_(min=torch.finfo(torch.float64).tiny)))
