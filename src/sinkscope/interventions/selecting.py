"""From a map of received attention to the keys that are cut: the rule's sinks, or a control's keys in their place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import xarray as xr

from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.interventions.controls import Control, Situation
from sinkscope.ordering import ordered
from sinkscope.seeds import seed_from
from sinkscope.sinks import First, SinkRule, TopK
from sinkscope.sinks.lexicon import CLASSES, Lexicon


def apply_rule(rule: SinkRule, received: torch.Tensor, eligible: torch.Tensor) -> torch.Tensor:
    """Where `rule` sees a sink among the eligible keys: (batch, head, key) boolean, as `received` and `eligible`.

    The two rules that a generation needs most have a form in tensors; every other rule is asked on a labelled array.
    """
    if isinstance(rule, TopK):
        order = ordered(received.masked_fill(~eligible, torch.nan))
        found = torch.zeros_like(eligible).scatter(-1, order[..., : int(rule.k)], True)
        return found & eligible
    if isinstance(rule, First):
        return eligible & (eligible.cumsum(-1) <= rule.k)
    values = received.double().masked_fill(~eligible, torch.nan).cpu().numpy()
    marks = rule.marks(xr.DataArray(values, dims=("batch", "head", "position")))
    return torch.from_numpy(marks.transpose("batch", "head", "position").values).to(received.device) & eligible


class TokenClasses:
    """Classes of the tokens on a canvas whose prompts end at `prompt_length`; each token id is looked up once."""

    def __init__(self, model: Model, prompt_length: int) -> None:
        self._tokenizer = model.tokenizer
        self._family = model.family
        self._prompt_length = prompt_length
        self._known: dict[int, int] = {}

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, position) classes of tokens, an index into `CLASSES`."""
        ids, where = np.unique(tokens.cpu().numpy(), return_inverse=True)
        found = np.array([self._class_of(int(token)) for token in ids], dtype=np.int64)
        classes = torch.from_numpy(found[where].reshape(tokens.shape)).to(tokens.device)
        other, prompt = CLASSES.index("other"), CLASSES.index("prompt")
        classes[:, : self._prompt_length][classes[:, : self._prompt_length] == other] = prompt
        return classes

    def _class_of(self, token: int) -> int:
        if token not in self._known:
            text = None if self._tokenizer is None else self._tokenizer.convert_ids_to_tokens(token)
            lexicon = Lexicon(
                texts={} if text is None else {token: str(text)},
                mask_token_id=self._family.mask_token_id,
                special_ids=frozenset(self._family.special_ids),
                prompt_length=self._prompt_length,
            )
            self._known[token] = CLASSES.index(lexicon.class_of(token))
        return self._known[token]


@dataclass
class PreviousMaps:
    """What the layers of the pass before showed, laid out over the keys of the pass that is under way.

    A diffusion model sees the same columns in every step. The keys of an autoregressive one grow by one, and a sliding
    cache forgets the first ones; columns that the earlier map lacks are unknown. Holds one tensor (batch, head, key) a
    layer, with the column after its last key.
    """

    _kept: dict[int, tuple[int, torch.Tensor]] = field(default_factory=dict)

    def keep(self, layer: int, end: int, values: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Remember what a layer showed; `end`: the column after its last key, never before that of an earlier pass.

        rows (batch,) boolean: the others keep what they had, with nothing in columns that are new; None means all.
        """
        before = None if rows is None else self.recall(layer, end, values.shape[-1])
        if rows is not None and before is not None:
            values = torch.where(rows.view(-1, 1, 1), values, before[0])
        self._kept[layer] = (end, values)

    def recall(self, layer: int, end: int, keys: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What is remembered of the columns from end - keys to end, (batch, head, key), and which of them are known,
        (key,). None where the layer was never kept."""
        if layer not in self._kept:
            return None
        until, values = self._kept[layer]
        first, known_first = end - keys, until - values.shape[-1]
        left, right = max(0, known_first - first), max(0, end - max(until, first))
        inside = values[..., max(0, first - known_first) :]
        known = torch.ones(inside.shape[-1], dtype=torch.bool, device=values.device)
        laid_out: torch.Tensor = torch.nn.functional.pad(inside, (left, right))
        return laid_out, torch.nn.functional.pad(known, (left, right))


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """What was decided for one layer of one pass, (batch, head, key) each."""

    received: torch.Tensor
    """The map that it was decided by."""
    sinks: torch.Tensor
    cut: torch.Tensor


class KeySelector:
    """Selects keys on a canvas of which the first rows, one for each seed, may lose some. See `MaskSinks`."""

    def __init__(
        self,
        model: Model,
        canvas: Canvas,
        seeds: Sequence[int],
        rule: SinkRule,
        control: Control | None,
        classes: Sequence[str] | None,
        heads: Sequence[int] | None,
        seed: int,
    ) -> None:
        self._rule = rule
        self._control = control
        self._wanted = None if classes is None else [CLASSES.index(name) for name in classes]
        by_class = classes is not None or (control is not None and control.by_class)
        self._classes = TokenClasses(model, canvas.prompt_length) if by_class else None
        self._noise = [torch.Generator().manual_seed(seed_from(f"control/{one}/{seed}")) for one in seeds]
        heads = range(model.shape.heads) if heads is None else heads
        chosen = torch.zeros(model.shape.heads, dtype=torch.bool).index_fill_(0, torch.tensor(heads), True)
        self._heads = chosen.view(1, -1, 1).to(canvas.tokens.device)

    def classes(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token classes (batch, position) where the selection needs them, else zeros."""
        return torch.zeros_like(tokens) if self._classes is None else self._classes.of(tokens)

    def select(
        self,
        received: torch.Tensor,
        eligible: torch.Tensor,
        classes: torch.Tensor,
        real: torch.Tensor,
        due: torch.Tensor,
        now: Callable[[], torch.Tensor],
    ) -> Selection:
        """received, eligible (batch, head, key): the map and the keys that it knows. classes, real (batch, key): of the
        tokens, and which of them are no padding. due (batch,): which rows lose keys now. now(): this pass's own map."""
        heads = self._heads[:, : received.shape[1]]  # a layer may have fewer than others
        sinks = apply_rule(self._rule, received, eligible) & heads & due.view(-1, 1, 1)
        if self._wanted is not None:
            sinks &= torch.isin(classes, torch.tensor(self._wanted, device=classes.device)).unsqueeze(1)
        if self._control is None:
            return Selection(received=received, sinks=sinks, cut=sinks)
        noise = self._draw(received, real, due) if self._control.noisy else torch.zeros_like(received)
        situation = Situation(received=received, eligible=eligible, sinks=sinks, classes=classes, noise=noise, now=now)
        chosen = self._control.choose(situation)
        if bool((chosen & ~situation.candidates).any()):
            raise UserError(f"control {self._control.name!r} chose sinks, padding or keys that are not there")
        return Selection(received=received, sinks=sinks, cut=chosen)

    def _draw(self, received: torch.Tensor, real: torch.Tensor, due: torch.Tensor) -> torch.Tensor:
        """Uniform noise (batch, head, key) for the real keys of each row that is due, from the row's generator."""
        noise, real = torch.zeros(received.shape), real.cpu()
        for row in due.nonzero().flatten().tolist():
            drawn = torch.rand(received.shape[1], int(real[row].sum()), generator=self._noise[row])
            noise[row, :, real[row]] = drawn
        return noise.to(received.device)
