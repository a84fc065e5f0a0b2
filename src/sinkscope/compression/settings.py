"""What is dropped, how much, and when: the settings of a compressed cache.

    Compress("key-norm", 0.5)                                       # half of every layer, once, after the prompt
    Compress(Protect(KeyNorm(), first=4), SkipLayers(0.5, (0, 1)))  # not in layers 0 and 1, never the first 4 tokens
    Compress("key-norm", 0.5, when="decode", prune_after=1024)      # whenever a layer holds more than 1024 keys

    generate(model, prompts, settings, compression=Compress("key-norm", 0.5))
    model.network.generate(**inputs, cache=Compress("key-norm", 0.5).cache(model))       # transformers' own loop

Where it misleads: what is dropped after the prompt was still there when the first new token was predicted. Answers of
one token are then answers of the full cache. `compress_prefix` drops before the question is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sinkscope.attention.function import NAME, observed
from sinkscope.attention.spread import refuse_split_heads
from sinkscope.compression.budgets import Budget, as_budget, read_budget
from sinkscope.compression.cache import CompressedBlocks, CompressedCache, row_seeds
from sinkscope.compression.contents import LayerRules, check_protected
from sinkscope.compression.layers import CompressedLayer, GrowingHolding
from sinkscope.compression.networks import rotation_of, windows_of
from sinkscope.compression.scorers import KeyNorm, Protect, Scorer, make_scorer, read_scorer
from sinkscope.compression.scorers.base import check_whole
from sinkscope.decoding.settings import require_one_of
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.sinks.rules import KeyCounts

WHEN = ("prompt", "decode", "both")


@dataclass(frozen=True)
class Compress:
    """Which keys a cache drops.

    scorer: a `Scorer`, or a spec of one: "key-norm", "streaming:first=4". budget: how many keys stay, a ratio, a number
    of tokens or a `Budget`; of every layer and key head alike, unless the budget says otherwise.
    when: "prompt", once after the first pass; "decode", after any pass, in rows that then hold more than `prune_after`
        keys; "both".
    prune_after: the number of keys of a layer that may pile up before it is cut again.
    seed: of random choices, which depend on it, the layer and the prompt.

    Raises `UserError` for values that no model could follow.
    """

    scorer: Scorer | str = field(default_factory=KeyNorm)
    budget: Budget | float | int = 0.5
    when: str = "prompt"
    prune_after: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.scorer, str):
            object.__setattr__(self, "scorer", read_scorer(self.scorer))
        if not isinstance(self.scorer, Scorer):
            raise UserError(f"scorer must be a Scorer or the name of one, got {self.scorer!r}")
        object.__setattr__(self, "budget", as_budget(self.budget))
        require_one_of("when", self.when, WHEN)
        if (self.prune_after is None) != (self.when == "prompt"):
            needs = (
                "drops once, without prune_after" if self.when == "prompt" else "needs prune_after, a number of keys"
            )
            raise UserError(f"when={self.when!r} {needs}; got prune_after={self.prune_after}")
        if self.prune_after is not None:
            check_whole("prune_after", self.prune_after, 1)
            if self.how.rereads:
                raise UserError(f"scorer {self.how.name!r} reads a context twice and drops once; use when='prompt'")
            if self.how.one_order and self.much.by_head:
                raise UserError(
                    f"scorer {self.how.name!r} has one order for all key heads, which under this budget hold "
                    "different keys when they are cut again; use when='prompt', or another scorer"
                )

    @property
    def how(self) -> Scorer:
        """The scorer itself."""
        assert isinstance(self.scorer, Scorer)
        return self.scorer

    @property
    def much(self) -> Budget:
        """The budget itself."""
        return as_budget(self.budget)

    @property
    def needs_received(self) -> bool:
        """Whether the model must be watched."""
        return self.how.needs_received or self.much.needs_received

    def for_blocks(self, model: Model) -> CompressedBlocks:
        """The same in the block caches of a diffusion model, which drop once in each block.

        Raises `UserError` for what can't be done to this model, and for pruning while it writes.
        """
        if self.when != "prompt":
            raise UserError(
                f"a block cache drops keys after each block's first pass, not by prune_after; use when='prompt', got "
                f"when={self.when!r}"
            )
        refuse_rereading(self)
        if self.how.rerotates:
            raise UserError(
                f"scorer {self.how.name!r} closes the gaps before what follows, and a block has keys on both sides; "
                "use the scorer inside it"
            )
        check_model(self, model)
        return CompressedBlocks(rules=_rules(self, model), seed=self.seed, heads=_heads_of(model))

    @property
    def prefix(self) -> tuple[int, ...]:
        """Token ids that are in the cache before any prompt: none."""
        return ()

    def check(self, model: Model, lengths: Sequence[int]) -> None:
        """Raise `UserError` for what can't be done to this model, with prompts of these lengths in tokens."""
        check_model(self, model)
        for length in lengths if self.when != "decode" else ():
            _check_protected(self, model, length, length, length)
        if lengths and self.when == "prompt":  # texts that are cut while they are written may become long
            self.much.refuse(KeyCounts(fewest=min(lengths), most=max(lengths)))
        check_pruning(self, model, lengths)

    def ready(self, model: Model) -> None:
        """Raise `UserError` unless the model is watched, if the scorer needs that."""
        if self.needs_received and not any(module in observed for module in model.network.modules()):
            who = _rules(self, model).wants_statistics
            raise UserError(f"{who} and {model.name} is not watched: run it inside `with ss.watch(model):`")

    def cache(self, model: Model, seeds: Sequence[int] | None = None) -> CompressedCache:
        """An empty cache for this model. seeds: one a row, for random choices, which depend on `seed` too; None: the
        same for all rows.

        Raises `UserError` for what can't be done to this model.
        """
        check_model(self, model)
        refuse_rereading(self)
        self.ready(model)
        return empty_cache(self, model, seeds)

    def fewest_keys(self, model: Model, length: int) -> int:
        """The fewest keys that a layer may hold of a row whose prompt has `length` tokens or more."""
        cut = [length] if self.when != "decode" else []
        cut += [] if self.prune_after is None else [self.prune_after + 1]
        much = self.much.of_layers(model.shape.layers)
        kept = [much.kept(held, layer) for held in cut for layer in range(model.shape.layers)]
        return min(kept if self.when != "decode" else [length, *kept])

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON, from which `read_compress` builds them again."""
        return {
            "scorer": self.how.settings(),
            "budget": self.much.to_plain(),
            "when": self.when,
            "prune_after": self.prune_after,
            "seed": self.seed,
        }


def check_model(compress: Compress, model: Model) -> None:
    """Raise `UserError` for what can't be done to this model, whatever the prompts."""
    if model.network.config._attn_implementation != NAME:
        raise UserError(f"{model.name} was loaded with another attention function; load it with attention={NAME!r}")
    refuse_split_heads(model.network, "keys can't be dropped so")
    compress.much.check(model.shape.layers)
    windows = windows_of(model)
    if (compress.how.rerotates or compress.how.rereads) and any(window is not None for window in windows):
        raise UserError(
            f"scorer {compress.how.name!r} moves keys or reads twice, which sliding windows ({model.name}) don't "
            "allow; use another scorer"
        )
    if compress.how.needs_rotation:
        rotation_of(model)


def refuse_rereading(compress: Compress) -> None:
    """Raise `UserError` for a scorer that wants a context read twice, where it is read once."""
    if compress.how.rereads:
        raise UserError(
            f"scorer {compress.how.name!r} reads a context twice before any question: use compress_prefix, or "
            "--when context"
        )


def check_pruning(compress: Compress, model: Model, lengths: Sequence[int]) -> None:
    """Raise `UserError` for a budget smaller than what is protected when layers are cut again. lengths: of prompts."""
    if compress.prune_after is not None:
        # Pruned layers hold one key too many again and again, of a text that has grown long.
        held = compress.prune_after + 1
        for length in lengths:
            _check_protected(compress, model, held, length + held, length)


def empty_cache(compress: Compress, model: Model, seeds: Sequence[int] | None = None) -> CompressedCache:
    """As `Compress.cache`, for a model that was checked, whether it is watched already or not."""
    rules, own = _rules(compress, model), row_seeds(compress.seed, seeds)
    layers = enumerate(zip(_heads_of(model), windows_of(model), strict=True))
    holdings = [GrowingHolding(replace(rules, layer=n, heads=heads), own, window) for n, (heads, window) in layers]
    return CompressedCache([CompressedLayer(one) for one in holdings])


def _heads_of(model: Model) -> tuple[int, ...]:
    """Query heads of each layer."""
    return tuple(one.heads for one in model.shape.each)


def _rules(compress: Compress, model: Model) -> LayerRules:
    """Of the first layer; the others differ by their number and heads alone."""
    return LayerRules(
        scorer=compress.how,
        budget=compress.much.of_layers(model.shape.layers),
        layer=0,
        heads=model.shape.heads,
        first_pass=compress.when != "decode",
        prune_after=compress.prune_after,
        rotation=rotation_of(model) if compress.how.needs_rotation else None,
    )


def _check_protected(compress: Compress, model: Model, held: int, length: int, prompt_length: int) -> None:
    much = compress.much.of_layers(model.shape.layers)
    for layer in range(model.shape.layers):
        check_protected(compress.how, much.kept(held, layer), held, length, prompt_length)


def read_compress(plain: Mapping[str, Any]) -> Compress:
    """The settings that `Compress.to_dict` wrote."""
    settings = dict(plain["scorer"])
    ends = settings.pop("protect", None)
    scorer = make_scorer(settings.pop("scorer"), **settings)
    return Compress(
        scorer if ends is None else Protect(scorer, **ends),
        read_budget(plain["budget"]),
        when=plain["when"],
        prune_after=plain["prune_after"],
        seed=plain["seed"],
    )
