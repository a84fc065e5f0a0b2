"""The kinds of twins, and the recipe of a training: everything that decides the weights, in one record.

Twins of one recipe share architecture, initial weights, documents, their order and number; only the objective differs.
A recipe is stored beside what it made, and a folder of another recipe is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Literal, get_args

from sinkscope.errors import UserError
from sinkscope.evaluation import LITTLE, MAX_EXAMPLE_TOKENS, find_task
from sinkscope.records import check_choice, check_numbers, record_from, typed_field

Objective = Literal["next-token", "masked-diffusion"]
Precision = Literal["float32", "bfloat16"]
MatrixOptimizer = Literal["muon", "adamw"]
LEAST_CONTEXT = MAX_EXAMPLE_TOKENS + max(find_task(name).gen_length for name in LITTLE)
"""What the longest question of a task may take with its answer: a training is measured on all tasks at every point."""
_SEEDS = 2**32
_MOST_RESTARTS = 10


@dataclass(frozen=True, kw_only=True)
class Kind:
    name: str
    objective: Objective
    logit_shift: bool = False
    """Row i-1 of the logits predicts position i, as an adapted autoregressive model keeps it (Dream)."""
    starts_from: str | None = None
    """The twin whose finished weights it starts from; the shared initial weights where None."""
    summary: str


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="twin-ar", objective="next-token", summary="autoregressive: causal, next-token loss"),
        Kind(
            name="twin-dlm",
            objective="masked-diffusion",
            summary="diffusion from scratch, like LLaDA: bidirectional, masked-diffusion loss",
        ),
        Kind(
            name="twin-adapted",
            objective="masked-diffusion",
            logit_shift=True,
            starts_from="twin-ar",
            summary="twin-ar made bidirectional and trained on as a diffusion model, logits shifted, like Dream",
        ),
    )
}


def find_kind(name: str) -> Kind:
    """The kind of that name. Raises `UserError` naming those there are."""
    if name not in KINDS:
        raise UserError(f"no twin is called {name!r}; the twins are {', '.join(KINDS)}")
    return KINDS[name]


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
    tokens: int = 21_000_000
    """Of each twin that starts from the shared initial weights, padding included."""
    adapted_tokens: int = 7_000_000
    """Of a twin that starts from another's finished weights."""
    batch_tokens: int = 3072
    lengths: tuple[int, ...] = (32, 64, 128)
    """Document lengths; every batch has one of them."""
    matrix_optimizer: MatrixOptimizer = "muon"
    matrix_rate: float = 0.02
    """Learning rate of the matrices of the layers: about 0.02 with Muon, 0.003 with AdamW."""
    other_rate: float = 3e-3
    """Learning rate of AdamW, for embeddings and norms."""
    weight_decay: float = 0.01
    warm_up: float = 0.02
    """Share of the steps of a cosine; it goes down to a twentieth."""
    restarts: int = 1
    """How often another cosine follows, half as long as the one before and from half its learning rates (warm restarts,
    Loshchilov and Hutter, arXiv 1608.03983)."""
    largest_norm: float = 1.0
    """Gradients are clipped to it."""
    answers_only: tuple[float, float] = (0.5, 1.0)
    """Share of the documents with answers in which masked diffusion masks answers only, at the start and at the end.

    It grows evenly over the first cosine, from pre-training on whole texts to fine-tuning on answers.
    """
    precision: Precision = "bfloat16"
    points: int = 30
    """How often a training is saved and measured."""
    seed: int = 0

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, typed_field(one.name, getattr(self, one.name), one.default))
        _check(self)

    def tokens_of(self, kind: Kind) -> int:
        """What a twin of the kind is trained on."""
        return self.tokens if kind.starts_from is None else self.adapted_tokens

    def steps(self, kind: Kind) -> int:
        return self.tokens_of(kind) // self.batch_tokens

    def cosines(self, kind: Kind) -> tuple[int, ...]:
        """Its optimizer steps on each cosine, those left out for which there are too few steps."""
        steps, halvings = self.steps(kind), range(self.restarts, -1, -1)
        whole = 2 ** (self.restarts + 1) - 1
        ends = [0, *(steps * (whole + 1 - 2**left) // whole for left in halvings)]
        return tuple(end - start for start, end in pairwise(ends) if end > start)

    def answers_only_at(self, step: int, kind: Kind) -> float:
        """The share at a step of a twin's training (from 0)."""
        first, last = self.answers_only
        return first + (last - first) * min(1.0, step / self.cosines(kind)[0])

    def stops(self, kind: Kind) -> tuple[int, ...]:
        """The steps after which its training is saved and measured; the last is the end."""
        return tuple(round(self.steps(kind) * (point + 1) / self.points) for point in range(self.points))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lengths": list(self.lengths), "answers_only": list(self.answers_only)}


def recipe_from(stored: Mapping[str, Any]) -> Recipe:
    """The recipe that `to_dict` gave, or that JSON says. Raises `UserError` for unknown fields and values
    of another type."""
    return record_from(Recipe, stored)


def differences(one: Recipe, other: Recipe) -> str:
    """The fields in which two recipes differ, in words; empty where they are the same."""
    mine, theirs = one.to_dict(), other.to_dict()
    return ", ".join(f"{name}={mine[name]} (now {theirs[name]})" for name in mine if mine[name] != theirs[name])


def _check(recipe: Recipe) -> None:
    """Raise `UserError` for numbers out of range, and for documents and points that do not fit."""
    counts = ("width", "layers", "heads", "mlp_width", "context", "tokens", "adapted_tokens", "batch_tokens", "points")
    positive = ("matrix_rate", "other_rate", "largest_norm", "initial_std", "rope_theta")
    check_numbers(recipe, counts=counts, positive=positive, others=("weight_decay",))
    if recipe.initial_std > 1:
        raise UserError(f"initial_std must be at most 1, got {recipe.initial_std}")
    for name, most in (("restarts", _MOST_RESTARTS), ("seed", _SEEDS - 1)):
        if not 0 <= getattr(recipe, name) <= most:
            raise UserError(f"{name} must lie between 0 and {most}, got {getattr(recipe, name)}")
    if not all(0 <= share <= 1 for share in (*recipe.answers_only, recipe.warm_up)) or len(recipe.answers_only) != 2:
        raise UserError(
            f"answers_only={recipe.answers_only} (start, end) and warm_up={recipe.warm_up} are shares between 0 and 1"
        )
    check_choice("precision", recipe.precision, get_args(Precision))
    check_choice("matrix_optimizer", recipe.matrix_optimizer, get_args(MatrixOptimizer))
    width, heads, lengths = recipe.width, recipe.heads, recipe.lengths
    if width % heads or width // heads % 2:
        raise UserError(
            f"width={width} does not give {heads} heads an even number of dimensions each; "
            f"choose a multiple of {2 * heads}"
        )
    if not lengths or not 32 <= min(lengths) <= max(lengths) <= min(recipe.context, recipe.batch_tokens):
        raise UserError(
            f"lengths={lengths} must lie between 32 and the smaller of context={recipe.context} and "
            f"batch_tokens={recipe.batch_tokens}"
        )
    if recipe.context < LEAST_CONTEXT:
        raise UserError(f"context must be at least {LEAST_CONTEXT}, as tasks take, got {recipe.context}")
    steps = min(recipe.tokens, recipe.adapted_tokens) // recipe.batch_tokens
    if recipe.points > steps:
        raise UserError(
            f"tokens={recipe.tokens} and adapted_tokens={recipe.adapted_tokens} in batches of {recipe.batch_tokens} "
            f"give {steps} steps, fewer than the {recipe.points} points at which the training is measured; "
            "give more tokens or fewer points"
        )
