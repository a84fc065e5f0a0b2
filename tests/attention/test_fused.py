"""The kernel in tiles: where it can be had, and its own tests (`fused_cases`) on a GPU or in Triton's interpreter."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sinkscope.attention import fused
from sinkscope.attention.fused import RowSums, available, kernels_for
from sinkscope.attention.given import Attention, Cut
from sinkscope.attention.watching import watch
from sinkscope.errors import UserError

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    available.cache_clear()
    yield
    available.cache_clear()


def test_equals_the_oracle_on_a_gpu_or_interpreted() -> None:
    """In a process of its own: Triton decides at its import whether it interprets."""
    environment = dict(os.environ)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "fused_cases.py"]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_a_cpu_has_it_only_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, network = torch.device("cpu"), torch.nn.Linear(3, 3)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert kernels_for(cpu) == ("one-pass", "two-pass")
    with pytest.raises(UserError, match="needs an NVIDIA GPU"), watch(network, kernel="fused"):
        pass
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    available.cache_clear()
    assert kernels_for(cpu) == ("one-pass", "two-pass", "fused")


def test_a_gpu_has_it_where_triton_and_a_compiler_are(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert kernels_for(gpu)[0] == "fused"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    available.cache_clear()
    assert not available(gpu) and kernels_for(gpu)[0] == "two-pass"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("sinkscope.attention.fused.find_spec", lambda _: None)
    available.cache_clear()
    assert kernels_for(gpu)[0] == "two-pass"


class Caught:
    """Stands where a kernel stands, and keeps what it is launched with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.arguments = kernel, dict[str, Any]()

    def __getitem__(self, _: object) -> Callable[..., None]:
        def launch(*arguments: Any, **named: Any) -> None:
            self.arguments = {**dict(zip(self.kernel.arg_names, arguments, strict=False)), **named}

        return launch


def compiled(caught: Caught, capability: int) -> tuple[Any, int]:
    """A caught launch as Triton compiles it for a GPU, which need not be there, and the bytes that a thread spills."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    given = dict(caught.arguments)
    options = {name: given.pop(name) for name in ("num_warps", "num_stages")}
    kinds = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int32: "*i32"}
    signature, constants, aligned = {}, {}, {}
    for place, name in enumerate(caught.kernel.arg_names):
        value = given[name]
        if name.isupper() or value is None or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = kinds[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        known = isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)
        if known and signature[name] != "constexpr":
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(caught.kernel, signature, constants, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    spilled = re.search(r"STACK:(\d+)", told)
    assert spilled is not None, told
    return made, int(spilled[1])


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled then")
def test_tiles_compile_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They fit into shared memory, multiply on tensor cores and, on the way that counts, spill nothing."""
    from sinkscope.attention import tiles

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    rows, columns = Caught(tiles.row_tiles), Caught(tiles.column_tiles)
    monkeypatch.setattr(tiles, "row_tiles", rows)
    monkeypatch.setattr(tiles, "column_tiles", columns)
    monkeypatch.setattr(fused, "_rows_of", lambda states: states)  # bfloat16 is what it is on a GPU
    states = torch.empty(1, 4, 64, 128, dtype=torch.bfloat16)
    plain = Attention(query=states, key=states, value=states, mask=None, causal=False, scale=0.1)
    log_sums = torch.empty(1, 4, 64)
    fused.sum_columns(plain, torch.ones(1, 1, 64), RowSums(log_sums=log_sums))
    made, spilled = compiled(columns, 90)
    assert spilled == 0 and "wgmma.mma_async" in made.asm["ptx"]
    assert made.metadata.shared <= 65536  # so that several programs share a multiprocessor

    mask = torch.ones(1, 1, 64, 64, dtype=torch.bool)
    full = Attention(
        query=states, key=states[:, :2], value=states[:, :2], mask=mask, causal=False, scale=0.1, softcap=5.0,
        learned_sink=torch.zeros(4, dtype=torch.bfloat16),
    )  # fmt: skip
    taken = Cut(keys=mask[:, :, 0].expand(1, 4, -1), queries=mask[0, :, 0])
    fused.sweep_rows(full, output=True, entropy=True, cut=taken)
    made, _ = compiled(rows, 86)
    assert made.metadata.shared <= 99 << 10 and "mma.sync" in made.asm["ptx"]

    single = states.float()
    causal = Attention(query=single, key=single, value=single, mask=None, causal=True, scale=0.1)
    fused.sum_columns(causal, torch.ones(1, 5, 64), RowSums(log_sums=log_sums))
    made, _ = compiled(columns, 86)
    assert made.metadata.shared <= 99 << 10 and "mma.sync" in made.asm["ptx"]
