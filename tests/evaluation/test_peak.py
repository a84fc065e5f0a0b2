"""The most memory that something takes."""

import subprocess
import sys

import pytest
import torch
from sinkscope.evaluation.peak import peak_memory

MIB = 1024 * 1024


TAKES = """
import torch
from sinkscope.evaluation.peak import peak_memory

with peak_memory(torch.device("cpu")) as peak:
    assert peak.nbytes is None
    taken = torch.ones({mib} * 1024 * 1024 // 4)
    del taken
print(peak.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process took at most")
@pytest.mark.parametrize(("taken", "least", "most"), [(64, 60, 96), (0, 0, 32)])
def test_what_was_taken_and_freed_again_is_seen(taken: int, least: int, most: int) -> None:
    """In a process of its own.

    One that has run other tests may hold so much freed memory that nothing more is taken.
    """
    done = subprocess.run(
        [sys.executable, "-c", TAKES.format(mib=taken)], capture_output=True, text=True, check=True, timeout=300
    )
    assert least * MIB <= int(done.stdout) < most * MIB


def test_where_the_system_does_not_say_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nowhere = tmp_path_factory.mktemp("none") / "missing" / "clear_refs"
    monkeypatch.setattr("sinkscope.evaluation.peak._RESET", nowhere)
    with peak_memory(torch.device("cpu")) as peak:
        torch.ones(1)
    assert peak.nbytes is None
