"""What one small training is: the chains it learns, its network, its objective and how it is optimised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from sinkscope.errors import UserError
from sinkscope.language.chains import Chains
from sinkscope.records import check_choice, check_numbers, record_from, typed_field
from sinkscope.training.recipe import MatrixOptimizer

Objective = Literal["next-token", "masked-diffusion", "adapted", "joint"]
Positions = Literal["rotary", "learned", "none"]
AttentionForm = Literal["softmax", "softmax-off-by-one", "learned-sink", "key-value-bias", "gated", "sigmoid"]
Registers = Literal["see-all", "see-themselves"]
_MOST_LENGTH = 1024
_MOST = {
    "layers": 64, "heads": 256, "width": 8192, "registers": 256, "steps": 10**7, "adapted_steps": 10**7, "rows": 65536,
    "warm_up": 10**7, "documents": 128, "seed": 2**32 - 1, "matrix_rate": 10.0, "other_rate": 10.0,
    "adapted_rate": 10.0, "weight_decay": 100.0,
}  # fmt: skip
"""What is larger is a slip of the hand: it would fill memory, or no training would end."""


@dataclass(frozen=True, kw_only=True)
class LabRecipe:
    """Everything that decides the weights of one training. Raises `UserError` for values that don't go together."""

    objective: Objective = "next-token"
    """`adapted` is next-token for `steps`, then masked diffusion with shifted logits for `adapted_steps`; `joint` is
    both losses in every step, each under its own mask, so that one network writes either way."""
    back: int = 2
    recall: int = 2
    share: float = 0.5
    sparsity: float = 0.15
    documents: int = 1
    """Of the chains, see `language.chains.Chains`."""
    length: int = 32
    """Tokens of a context, `<bos>` included."""
    layers: int = 3
    heads: int = 4
    width: int = 64
    positions: Positions = "rotary"
    attention: AttentionForm = "softmax"
    """See `lab.networks`."""
    registers: int = 0
    """Learned tokens in front of every context; one is a dedicated sink token."""
    registers_mode: Registers = "see-all"
    """What registers attend to."""
    matrix_optimizer: MatrixOptimizer = "adamw"
    matrix_rate: float = 0.01
    other_rate: float = 0.01
    """Learning rates: of the layers' matrices, and of AdamW for all else; constant after the warm-up."""
    weight_decay: float = 0.0
    warm_up: int = 100
    """Steps."""
    steps: int = 1500
    adapted_steps: int = 1000
    adapted_rate: float = 0.005
    """Of all weights in the second part of `adapted`."""
    rows: int = 64
    """Contexts of a batch."""
    seed: int = 0
    """Of initial weights, contexts and masks; the chain's transitions are the same for all."""

    def __post_init__(self) -> None:
        for one in fields(self):
            object.__setattr__(self, one.name, typed_field(one.name, getattr(self, one.name), one.default))
        counts = ("length", "layers", "heads", "width", "steps", "adapted_steps", "rows", "documents")
        positive = ("matrix_rate", "other_rate", "adapted_rate", "sparsity", "share")
        check_numbers(self, counts=counts, positive=positive, others=("weight_decay", "warm_up", "registers", "seed"))
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise UserError(f"{name} must be at most {most}")
        for name, kind in _CHOICES.items():
            check_choice(name, getattr(self, name), get_args(kind))
        if self.width % (2 * self.heads):
            raise UserError(f"width={self.width} must be a multiple of {2 * self.heads}, for {self.heads} heads")
        if not 8 * self.documents <= self.length <= _MOST_LENGTH:
            raise UserError(
                f"length={self.length} must be 8 to {_MOST_LENGTH} tokens, 8 for each of {self.documents} walks"
            )
        _ = self.chains  # refuses what no chain can have

    @property
    def chains(self) -> Chains:
        """What it learns."""
        return Chains(
            back=self.back, recall=self.recall, share=self.share, sparsity=self.sparsity, documents=self.documents
        )

    @property
    def bidirectional(self) -> bool:
        return self.objective != "next-token"

    @property
    def stock(self) -> bool:
        """Whether its network is transformers' own, so that `load_model` opens it."""
        return self.attention == "softmax" and self.positions == "rotary" and self.registers == 0

    # What a grid asks of a condition.

    @property
    def name(self) -> str:
        """What differs from the default recipe, in words."""
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.changes.items()) or "default"

    @property
    def changes(self) -> dict[str, Any]:
        """Fields that differ from the default recipe, but for the seed and the objective."""
        usual = LabRecipe()
        return {n: v for n, v in asdict(self).items() if v != getattr(usual, n) and n not in ("seed", "objective")}

    @property
    def packages(self) -> Mapping[str, str]:
        """No package but those that decide all numbers."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """As JSON, from which `lab_recipe` builds it again."""
        return asdict(self)


_CHOICES = {
    "objective": Objective, "positions": Positions, "attention": AttentionForm, "registers_mode": Registers,
    "matrix_optimizer": MatrixOptimizer,
}  # fmt: skip


def lab_recipe(stored: Mapping[str, Any]) -> LabRecipe:
    """From what `to_dict` gave, or JSON says; what is not named keeps its default. Raises `UserError` for what is no
    field, or no value of it."""
    return record_from(LabRecipe, stored)
