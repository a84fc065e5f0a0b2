"""Loading: one call from a name or folder to a network, its tokenizer and its family.

    model = load_model("rxnmapper", device="cpu")
    model.network(input_ids).logits                    # (batch, position, vocabulary)

Everything that can be refused is refused before a weight is read: names, configuration, files that are cut off, an
attention function that nobody registered. Then transformers reads the files one weight at a time, so memory holds one
copy.

Misleads: the weights get the wished dtype, the rotary frequencies stay float32, as in the reference code. Do not cast
the network afterwards with `network.to(torch.bfloat16)`: that casts the frequencies too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as library_log

from sinkscope.errors import UserError, refusing
from sinkscope.families.base import Body, Family, Shape, shape_of
from sinkscope.families.building import OURS, prepare, try_loaded
from sinkscope.families.checkpoint import Checkpoint, resolve
from sinkscope.families.stored import StoredTensor, common_dtype, float_dtype
from sinkscope.families.unpacked import read_once
from sinkscope.families.weights import check_report, check_values

DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")
}
_WIDE = (torch.float32, torch.float64)

_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Device maps that accelerate makes itself."""
DeviceMap = str | int | torch.device | Mapping[str, int | str | torch.device]


@dataclass(frozen=True)
class Model:
    """A network ready to run, and what must be known to run it."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    """None where the checkpoint has none: prompts are then token ids."""
    family: Family
    name: str
    """What the user asked for."""
    revision: str | None
    """The commit that a hub model resolved to."""
    seen_shape: Shape | None = None
    """Of its attention, as the trial before loading saw it."""

    @property
    def shape(self) -> Shape:
        """Layers and heads of its attention."""
        return shape_of(self.network) if self.seen_shape is None else self.seen_shape

    @property
    def device(self) -> torch.device:
        """Where token ids go: where the embeddings compute, which may not be where offloaded weights lie."""
        hook = getattr(self.network.get_input_embeddings(), "_hf_hook", None)
        return torch.device(getattr(hook, "execution_device", None) or self.network.device)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[str(self.network.dtype).removeprefix("torch.")]


class Float32Rotation(nn.Module):
    """Rotary angles in float32 for a network of any dtype, so that queries and keys come out in float32.

    LLaDA's `rope_full_precision`: the reference rotates in float32 and casts back, stock transformers casts the
    angles to the dtype of the hidden states first. The attention function casts back.
    """

    def __init__(self, rotation: nn.Module) -> None:
        super().__init__()
        self.rotation = rotation

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine, each (batch, position, head dim)."""
        like = torch.empty(0, dtype=torch.float32, device=hidden.device)  # only its dtype and device are asked for
        cosine, sine = self.rotation(like, position_ids)
        return cosine, sine


def load_model(
    name_or_folder: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    attention: str = OURS,
    device_map: DeviceMap | None = None,
    distributed_config: Any = None,
    mask_token_id: int | None = None,
    block_length: int | None = None,
) -> Model:
    """Load a checkpoint into a stock transformers network, on evaluation and without gradients.

    `name_or_folder` is a folder, a GGUF file, a model inside a package (`smollm2-135m`, `rxnmapper`) or a hub
    repository. `dtype`: as stored where None (GGUF: float32). `device`: the GPU where there is one. `device_map` goes
    to transformers (needs accelerate), and so does `distributed_config`, transformers' `DistributedConfig` that splits
    the network over processes; each excludes `device` and the other. `attention` names a registered attention function.

    What the files of some diffusion models do not say: `mask_token_id`, the token that stands for a mask, and
    `block_length`, the tokens of a block of their attention (block-causal models; where the files name one, another).

    Raises `UserError` for a checkpoint that cannot be loaded exactly.
    """
    _check_attention(attention)
    places = {"device": device, "device_map": device_map, "distributed_config": distributed_config}
    given = [name for name, place in places.items() if place is not None]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} exclude each other; leave one out")
    wished = None if dtype is None else parse_dtype(dtype)
    target = parse_device(device) if device_map is distributed_config is None else None
    prepared = prepare(
        resolve(name_or_folder, revision=revision, mask_token_id=mask_token_id, block_length=block_length), attention
    )
    checkpoint, body, stored = prepared.checkpoint, prepared.body, prepared.stored
    chosen = wished or stored_dtype(checkpoint, body, stored)
    _check_rotation(checkpoint, body, attention, chosen)
    spread = {"device_map": _placement(target, device_map), "distributed_config": distributed_config}
    network: Any = _read_network(checkpoint, body, chosen, attention, spread)
    if body.float32_rotation and chosen not in _WIDE:
        network.model.rotary_emb = Float32Rotation(network.model.rotary_emb)
    if target is not None:
        network.to(target)
    check_values(checkpoint, network, stored)
    network.eval().requires_grad_(False)
    shape = prepared.shape if prepared.tried else try_loaded(prepared, network)
    return Model(network, prepared.tokenizer, prepared.family, checkpoint.name, checkpoint.revision, shape)


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A torch dtype from its name. Raises `UserError` for what weights cannot be computed in."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UserError(f"dtype={name!r}, wanted one of {', '.join(DTYPES)}")
    return DTYPES[name]


def parse_device(device: str | int | torch.device | None) -> torch.device:
    """A device that this machine has; the GPU where there is one if None. Raises `UserError` for one it has not."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
        torch.empty(0, device=parsed).cpu()  # "meta" has no numbers to give back
    except (RuntimeError, AssertionError, TypeError, ValueError, OverflowError, ImportError) as error:
        reason = str(error).strip().splitlines()[0][:100]
        raise UserError(f"device={str(device)!r} cannot be used here ({reason}); try device='cpu'") from error
    return parsed


def stored_dtype(checkpoint: Checkpoint, body: Body, stored: Mapping[str, StoredTensor]) -> torch.dtype:
    """The dtype that config.json names, else the one that most stored values have; float32 for GGUF."""
    if checkpoint.gguf is not None:
        return torch.float32
    named = body.config.dtype
    if isinstance(named, torch.dtype) and named in DTYPES.values():
        return named
    return float_dtype(common_dtype(stored))


def _check_attention(attention: str) -> None:
    import_module("sinkscope.attention")  # registers the one that is named where nobody names another
    known = sorted({"eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()})
    if attention not in known:
        raise UserError(f"attention={attention!r} is not registered; known: {', '.join(known)}")


def _check_rotation(checkpoint: Checkpoint, body: Body, attention: str, dtype: torch.dtype) -> None:
    if body.float32_rotation and dtype not in _WIDE and attention != OURS:  # ours takes queries wider than values
        raise UserError(
            f"{checkpoint.name}: rope_full_precision=True rotates in float32; beside {dtype} weights only "
            f"attention={OURS!r} can follow (asked: {attention!r}); use that or dtype='float32'"
        )


def _placement(target: torch.device | None, device_map: DeviceMap | None) -> DeviceMap | None:
    """Weights go straight to their device where accelerate is there to do it; else by way of main memory."""
    if device_map is not None and find_spec("accelerate") is None:
        raise UserError(f"device_map={device_map} needs accelerate; run: pip install accelerate")
    _check_map(device_map)
    if target is None or target.type == "cpu" or find_spec("accelerate") is None:
        return device_map
    return {"": target}


def _check_map(device_map: DeviceMap | None) -> None:
    """Raise `UserError` for a device map that names no place, or a device that is not here."""
    if isinstance(device_map, Mapping):
        if not device_map or not all(isinstance(part, str) for part in device_map):
            raise UserError(f"device_map={device_map}: wanted devices by the name of a part, '' for all of the network")
        places = [place for place in device_map.values() if place != "disk"]
    else:
        places = [] if device_map in (None, *_MAPS) else [device_map]
    for place in places:
        if not isinstance(place, str | int | torch.device):
            raise UserError(f"device_map={device_map}: {place!r} is not a device; name devices, parts or 'auto'")
        parse_device(place)


def _read_network(
    checkpoint: Checkpoint, body: Body, dtype: torch.dtype, attention: str, spread: Mapping[str, Any]
) -> PreTrainedModel:
    network_class: Any = body.network_class
    if dtype is torch.float64:
        body.config._experts_implementation = "eager"  # the library's default kernel for experts has no float64
    options: dict[str, Any] = {"key_mapping": dict(body.renames)} if body.renames else {}
    if checkpoint.gguf is None and (body.native_names or checkpoint.config.get("model_type") not in CONFIG_MAPPING):
        settings: Any = GenerationConfig
        # A foreign generation_config.json belongs to a foreign sampler, and is not read.
        options["generation_config"] = settings()
    read = partial(
        network_class.from_pretrained,
        config=body.config,
        dtype=dtype,
        attn_implementation=attention,
        ignore_mismatched_sizes=True,  # reported, and refused by check_report with their names
        output_loading_info=True,
        **spread,
        **options,
    )
    with refusing(f"{checkpoint.name}: transformers does not load it so"), _no_table():
        if checkpoint.gguf is None:
            network, report = read(checkpoint.folder)
        else:
            network, report = read_once(checkpoint, "weights", read, _saver)
    check_report(checkpoint, body, report)
    loaded: PreTrainedModel = network
    return loaded


def _saver(read: tuple[PreTrainedModel, object]) -> Callable[[Path], None] | None:
    """Writes the weights; None where they are not all here in float32, and so not all that the GGUF file says."""
    network, _ = read

    def save(folder: Path) -> None:
        folder.mkdir()
        network.generation_config.save_pretrained(folder)  # looked for with the weights
        save_model(network, str(folder / "model.safetensors"), metadata={"format": "pt"})

    weights = list(network.parameters())
    whole = all(type(one) is torch.nn.Parameter and one.dtype is torch.float32 for one in weights)
    return save if whole and not any(one.is_meta for one in weights) else None


@contextmanager
def _no_table() -> Iterator[None]:
    """Silence the library's own table of missing weights: `check_report` says it in one line."""
    before = library_log.get_verbosity()
    library_log.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        library_log.set_verbosity(before)
