"""Classes of the tokens on a canvas, looked up once a token id."""

import numpy as np
import torch

from sinkscope.families import Model
from sinkscope.sinks.lexicon import CLASSES, Lexicon


class TokenClasses:
    """(batch, position) classes, an index into `CLASSES`, of a canvas whose prompts end at `prompt_length`.

    Costs a look at each token id that is new.
    """

    def __init__(self, model: Model, prompt_length: int) -> None:
        self._tokenizer = model.tokenizer
        self._family = model.family
        self._prompt_length = prompt_length
        self._known: dict[int, int] = {}

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Classes of tokens (batch, position)."""
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
