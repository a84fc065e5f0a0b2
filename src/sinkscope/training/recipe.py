"""The recipe of a training: everything that decides the weights, in one record.

Twins of one recipe share architecture, initial weights, documents, their order and number; only the objective differs.
A recipe is stored beside what it made, and a folder of another recipe is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sinkscope.errors import UserError
from sinkscope.training.kinds import Kind

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, on how much of what, and how."""

    width: int = 192
    layers: int = 6
    heads: int = 6
    mlp_width: int = 576
    rope_theta: float = 500.0
    context: int = 512
    """Positions that the configuration allows; the longest document is what was trained."""
    initial_std: float = 0.04
    """Larger than the usual 0.02, which is slow at this width."""
    tokens: int = 14_000_000
    """Of each twin that starts from the shared initial weights, padding included."""
    adapted_tokens: int = 5_000_000
    """Of a twin that starts from another's finished weights."""
    batch_tokens: int = 3072
    lengths: tuple[int, ...] = (32, 64, 128)
    """Document lengths; every batch has one of them."""
    matrix_rate: float = 0.02
    """Learning rate of Muon, for the matrices of the layers."""
    other_rate: float = 3e-3
    """Learning rate of AdamW, for embeddings and norms."""
    weight_decay: float = 0.01
    warm_up: float = 0.02
    """Share of the steps; a cosine down to a twentieth follows."""
    largest_norm: float = 1.0
    """Gradients are clipped to it."""
    answers_only: tuple[float, float] = (0.5, 1.0)
    """Share of the documents with answers in which masked diffusion masks answers only, at the start and at the end.

    It grows evenly, from pre-training on whole texts to fine-tuning on answers.
    """
    precision: Precision = "bfloat16"
    points: int = 20
    """How often a training is saved and measured."""
    seed: int = 0

    def __post_init__(self) -> None:
        counts = (
            "width",
            "layers",
            "heads",
            "mlp_width",
            "context",
            "tokens",
            "adapted_tokens",
            "batch_tokens",
            "points",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("matrix_rate", "other_rate", "largest_norm", "initial_std", "rope_theta"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} must be above 0, got {getattr(self, name)}")
        if not all(0 <= share <= 1 for share in (*self.answers_only, self.warm_up)) or len(self.answers_only) != 2:
            raise UserError(
                f"answers_only={self.answers_only} (start, end) and warm_up={self.warm_up} are shares between 0 and 1"
            )
        if self.width % self.heads or self.width // self.heads % 2:
            raise UserError(f"width={self.width} does not give {self.heads} heads an even number of dimensions each")
        if not self.lengths or not 32 <= min(self.lengths) <= max(self.lengths) <= min(self.context, self.batch_tokens):
            raise UserError(
                f"lengths={self.lengths} must lie between 32 and the smaller of context={self.context} and "
                f"batch_tokens={self.batch_tokens}"
            )
        steps = min(self.tokens, self.adapted_tokens) // self.batch_tokens
        if self.points > steps:
            raise UserError(
                f"tokens={self.tokens} and adapted_tokens={self.adapted_tokens} in batches of {self.batch_tokens} give "
                f"{steps} steps, fewer than the {self.points} points at which the training is measured"
            )
        if self.precision not in ("float32", "bfloat16"):
            raise UserError(f"precision={self.precision!r}, wanted float32 or bfloat16")

    def tokens_of(self, kind: Kind) -> int:
        """What a twin of the kind is trained on."""
        return self.tokens if kind.starts_from is None else self.adapted_tokens

    def steps(self, kind: Kind) -> int:
        """Its optimizer steps."""
        return self.tokens_of(kind) // self.batch_tokens

    def answers_only_at(self, step: int, kind: Kind) -> float:
        """The share at a step of a twin's training (from 0)."""
        first, last = self.answers_only
        return first + (last - first) * step / self.steps(kind)

    def stops(self, kind: Kind) -> tuple[int, ...]:
        """The steps after which its training is saved and measured; the last is the end."""
        return tuple(round(self.steps(kind) * (point + 1) / self.points) for point in range(self.points))

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "lengths": list(self.lengths), "answers_only": list(self.answers_only)}


def recipe_from(stored: Mapping[str, Any]) -> Recipe:
    """The recipe that `to_dict` gave. Raises `UserError` for fields that are none."""
    known = {one.name for one in fields(Recipe)}
    surplus = sorted(stored.keys() - known)
    if surplus:
        raise UserError(f"a recipe has no {', '.join(surplus)}; its fields are {', '.join(sorted(known))}")
    pairs = {name: tuple(stored[name]) for name in ("lengths", "answers_only") if name in stored}
    return Recipe(**{**stored, **pairs})


def differences(one: Recipe, other: Recipe) -> str:
    """The fields in which two recipes differ, in words; empty where they are the same."""
    mine, theirs = one.to_dict(), other.to_dict()
    return ", ".join(f"{name}={mine[name]} (now {theirs[name]})" for name in mine if mine[name] != theirs[name])
