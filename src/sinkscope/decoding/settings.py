"""How to generate: the settings objects, one for each kind of model. The object is its configuration; the command line
only builds such objects.

Checks that need nothing but the settings happen when the object is made; those that need the model or the prompts
happen before the first forward pass (`decoding.canvas`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType

from sinkscope.decoding.choice import CONFIDENCE, SCHEDULES
from sinkscope.decoding.refresh_rules import REFRESH_RULES, RefreshRule, read_refresh_rule
from sinkscope.discovery import parted_spec
from sinkscope.errors import UserError

CACHES = ("prefix", "dual", "blocks")
STOPS = ("block", "at-once")
LEAST_TEMPERATURE = 1e-3
MOST_GUIDANCE = 1e4
"""Beyond this guidance multiplies rounding errors of the logits into answers."""


@dataclass(frozen=True, kw_only=True)
class Denoising:
    """Decoding of a masked diffusion model, or of any masked language model.

    gen_length: masks appended to the prompt; 0 fills the masks that the prompt holds, or with steps=0 reads a finished
        text in one pass, which commits nothing: the same text can so be watched under several masks.
    block_length: blocks are finished from left to right, the last may be shorter; None takes the model's own, which is
        the whole generation where the model sees all of it. Block-causal models have no other. With gen_length=0 blocks
        are counted from the text's first token (dllm `infill`).
    steps: denoising steps, divided evenly over the blocks and rounded up for each; None takes as many as there are
        masks, with "blocks" one position a step.
    schedule: how many positions a step commits, "blocks" (LLaDA), "shares" (SDAR, LLaDA 2), "linear" (dllm) or "dream"
        (Dream's timesteps).
    stochastic_transfer: how many positions a step commits is drawn, each mask with the share of the masks left that the
        schedule commits in the mean (dllm; Dream's `origin` is this with "dream" and confidence "random"). Steps that
        commit none are not made.
    confidence: which positions come first: "max-prob", "margin", "entropy" (negative entropy), "random" or
        "left-to-right".
    alg_temp: positions are drawn, by a softmax of the confidences over this temperature, without replacement (Dream);
        None takes the highest.
    threshold: commit every position whose confidence is at least this, and always the best one (Fast-dLLM). With the
        "dream" schedule no step commits more than its even share and what earlier steps held back; with "shares" none
        commits fewer than its share, and the confidence must lie above the threshold.
    factor: in place of a threshold, the better the more are committed at once: of the best r positions each i has a
        confidence of at least 1 - factor / (i + 1), and always the best one (Fast-dLLM, arXiv 2505.22618).
    cache: None, "prefix" (keys and values before the block are kept, made anew with each block) or "dual" (those after
        it too) (Fast-dLLM); of block-causal models "prefix" or "blocks" (those of a finished block are made once and
        kept), and both are exact; with `sub_block_length` also "dual", which feeds the part of a block that has begun
        and leaves the rest of the block stale (Fast-dLLM v2's block cache).
    sub_block_length: with a threshold, parts of a block that are filled one after the other (Fast-dLLM v2).
    stop: of block-causal models; None fills all blocks, "block" ends a text with the block that holds its end,
        "at-once" as soon as no mask stands before its end.
    cfg_scale: classifier-free guidance, logits = un + (scale + 1)(cond - un) with the prompt masked in `un`; 0 is off.
        cfg_keep_tokens: ids of the prompt that are left in `un` (dllm).
    temperature: Gumbel noise in float64; 0 is greedy. top_p, top_k: keep the smallest set of tokens with this
        probability, or the best k; they change confidences too, also when greedy.
    suppress: token ids that are never predicted. defer: ids that may be predicted but are committed last (LLaDA's
        `logits_eos_inf` and `confidence_eos_eot_inf`).
    seed: noise depends on it, on the prompt, and on nothing else: not on the batch, not on the device.
    """

    gen_length: int = 128
    block_length: int | None = 32
    steps: int | None = 128
    schedule: str = "blocks"
    stochastic_transfer: bool = False
    confidence: str = "max-prob"
    alg_temp: float | None = None
    threshold: float | None = None
    factor: float | None = None
    cache: str | None = None
    sub_block_length: int | None = None
    stop: str | None = None
    cfg_scale: float = 0.0
    cfg_keep_tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    suppress: tuple[int, ...] = ()
    defer: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("suppress", "defer", "cfg_keep_tokens"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        require_one_of("schedule", self.schedule, tuple(SCHEDULES))
        require_one_of("confidence", self.confidence, tuple(CONFIDENCE))
        if self.cache is not None:
            check_cache(self.cache)
        if self.stop is not None:
            require_one_of("stop", self.stop, STOPS)
        if self.sub_block_length is not None:
            _at_least("sub_block_length", self.sub_block_length, 1)
            if not self.by_certainty:
                raise UserError("sub_block_length needs a threshold: a schedule counts by blocks; set one or leave it")
        _at_least("gen_length", self.gen_length, 0)
        if self.gen_length == 0 and self.cache is not None:
            raise UserError("a block cache needs gen_length > 0; to fill the masks of a prompt use cache=None")
        if self.block_length is not None:
            _at_least("block_length", self.block_length, 1)
        if self.steps is not None:
            _at_least("steps", self.steps, 0 if self.gen_length == 0 else 1)
        self._check_certainty()
        _check_sampling(self.temperature, self.top_p, self.top_k)
        if not 0 <= _number("cfg_scale", self.cfg_scale) <= MOST_GUIDANCE:
            raise UserError(f"cfg_scale must be a number from 0 to {MOST_GUIDANCE:g}, got {self.cfg_scale}")
        if self.cfg_keep_tokens and self.cfg_scale == 0:
            raise UserError("cfg_keep_tokens are kept from guidance, and cfg_scale is 0; set it, or leave them out")

    def _check_certainty(self) -> None:
        """Refuse what does not go with one another among the ways to say how many positions come, and which."""
        if self.threshold is not None:
            _in_range("threshold", self.threshold, 0.0, 1.0)
        if self.factor is not None and not 0 < _number("factor", self.factor) < float("inf"):
            raise UserError(f"factor must be a number above 0, got {self.factor}")
        if self.threshold is not None and self.factor is not None:
            raise UserError("threshold and factor are two ways to say what is sure enough; give one of them")
        if self.alg_temp is not None and not LEAST_TEMPERATURE <= _number("alg_temp", self.alg_temp) < float("inf"):
            raise UserError(f"alg_temp must be None or a number of at least {LEAST_TEMPERATURE}, got {self.alg_temp}")
        if not self.by_certainty:
            return
        name = "factor" if self.threshold is None else "threshold"
        if not CONFIDENCE[self.confidence].is_probability:
            raise UserError(
                f"{name} compares probabilities, confidence {self.confidence!r} is none; use max-prob or margin"
            )
        for other in ("alg_temp", "stochastic_transfer"):
            if getattr(self, other):
                raise UserError(f"{name} leaves nothing to draw for {other}; leave one of them out")

    @property
    def by_certainty(self) -> bool:
        """Whether a step commits what is sure enough, and no schedule's count."""
        return self.threshold is not None or self.factor is not None

    @property
    def blocks(self) -> int:
        """Blocks of what is appended; 1 where masks of the prompt are filled."""
        if self.gen_length == 0 or self.block_length is None:
            return 1
        return -(-self.gen_length // self.block_length)

    @property
    def refreshing(self) -> RefreshRule | None:
        """The rule of a cache that computes some columns anew in each pass; None for other caches."""
        return None if self.cache is None or self.cache in CACHES else read_refresh_rule(self.cache)

    @property
    def reads(self) -> bool:
        """Whether a finished text is read, and nothing is generated."""
        return self.gen_length == 0 and self.steps == 0

    @property
    def new_tokens(self) -> int:
        """Tokens that are generated after a prompt."""
        return self.gen_length

    def max_steps(self, masks: int = 0) -> int:
        """The most forward passes that a generation can take, with at most `masks` masks in a prompt.

        A pass follows the schedule's steps or commits something in each row that has masks left; a cached block makes
        at least two passes.
        """
        if self.reads:
            return 1
        least, blocks, steps = (1 if self.cache is None else 2), self.blocks, self.steps or 0
        length = self.gen_length if blocks == 1 else self.block_length or 0
        last = self.gen_length - (blocks - 1) * length
        appended = (blocks - 1) * max(least, length) + max(least, last) if self.gen_length else 0
        return max(appended + masks, -(-steps // blocks) * blocks)


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Decoding of an autoregressive model, one token a step over a key-value cache.

    temperature 0 is greedy. Generation of a prompt ends with an end-of-sequence token of the model, which is kept.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    suppress: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "suppress", tuple(self.suppress))
        _at_least("max_new_tokens", self.max_new_tokens, 1)
        _check_sampling(self.temperature, self.top_p, self.top_k)

    @property
    def new_tokens(self) -> int:
        """The most tokens that are generated after a prompt."""
        return self.max_new_tokens

    def max_steps(self, masks: int = 0) -> int:
        """The most forward passes that a generation can take."""
        del masks
        return self.max_new_tokens


@dataclass(frozen=True, kw_only=True)
class Renoising:
    """Decoding of a diffusion model whose noise is random tokens, not masks (DiffusionGemma); names as in transformers.

    A canvas begins as random tokens. In each step every position draws a token; those that are surest keep theirs, all
    others get new random ones. What is written in the end is the likeliest token of the last step.

    gen_length: tokens after the prompt, rounded up to whole canvases. steps: the most of a canvas
    (`max_denoising_steps`).
    entropy_bound: positions keep what they drew, the least entropy first, while the entropies of those before them add
        up to no more than this many nats (arXiv 2505.24857).
    t_max, t_min: temperature of the logits, from near `t_max` in the first step falling linearly to `t_min`.
    stability_threshold, confidence_threshold: a canvas ends early when its likeliest tokens are those of so many steps
        before, and the mean entropy lies below so many nats; with None for either all steps are made.
    seed: as in `Denoising`; noise of a prompt that is run alone is transformers' own.
    """

    gen_length: int = 256
    steps: int = 48
    entropy_bound: float = 0.1
    t_max: float = 0.8
    t_min: float = 0.4
    stability_threshold: int | None = 1
    confidence_threshold: float | None = 0.005
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least("gen_length", self.gen_length, 1)
        _at_least("steps", self.steps, 1)
        for name in ("entropy_bound", "t_max", "t_min", "confidence_threshold"):
            value, may_be_none = vars(self)[name], name == "confidence_threshold"
            if not (may_be_none and value is None) and not 0 < _number(name, value) < float("inf"):
                raise UserError(f"{name} must be a number above 0, got {value}")
        if not LEAST_TEMPERATURE <= self.t_min < self.t_max:
            raise UserError(
                f"t_min must be at least {LEAST_TEMPERATURE} and below t_max ({self.t_max}), got {self.t_min}"
            )
        if self.stability_threshold is not None:
            _at_least("stability_threshold", self.stability_threshold, 0)

    @property
    def new_tokens(self) -> int:
        """Tokens that are asked for after a prompt."""
        return self.gen_length


Settings = Denoising | Renoising | Decoding
KINDS = MappingProxyType({Denoising: "a mask-filling", Renoising: "a renoising", Decoding: "an autoregressive"})
"""What a message calls the models that take them, before the word model."""


def _check_sampling(temperature: float, top_p: float | None, top_k: int | None) -> None:
    # Below this the logits of a model overflow when divided by it; 0 itself is greedy.
    if _number("temperature", temperature) != 0 and not LEAST_TEMPERATURE <= temperature < float("inf"):
        raise UserError(f"temperature must be 0 or a number of at least {LEAST_TEMPERATURE}, got {temperature}")
    if top_p is not None:
        _in_range("top_p", top_p, 0.0, 1.0)
    if top_k is not None:
        _at_least("top_k", top_k, 1)


def check_cache(cache: str) -> None:
    """Raise `UserError` for what is no cache, with parameters that it does not take."""
    name, _ = parted_spec(cache)
    if cache not in CACHES:
        require_one_of("cache", name, (*CACHES, *REFRESH_RULES))
        read_refresh_rule(cache)


def require_one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Raise `UserError` for a value that is none of those known. name: what a message calls it."""
    if value not in known:
        raise UserError(f"unknown {name} {value!r}; choose one of {', '.join(known)}")


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise UserError(f"{name} must be at least {least}, got {value}")


def _number(name: str, value: float) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise UserError(f"{name} must be a number, got {value!r}")
    return value


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low < _number(name, value) <= high:
        raise UserError(f"{name} must be above {low:g} and at most {high:g}, got {value:g}")
