"""The most memory that something takes."""

import sys

import pytest
import torch

from sinkscope.evaluation.peak import peak_memory

MIB = 1024 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process took at most")
def test_what_was_taken_and_freed_again_is_seen() -> None:
    with peak_memory(torch.device("cpu")) as peak:
        assert peak.nbytes is None
        taken = torch.ones(64 * MIB // 4)
        del taken
    assert peak.nbytes is not None and peak.nbytes > 60 * MIB
    with peak_memory(torch.device("cpu")) as small:
        torch.ones(1)
    assert small.nbytes is not None and small.nbytes < 32 * MIB


def test_where_the_system_does_not_say_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nowhere = tmp_path_factory.mktemp("none") / "missing" / "clear_refs"
    monkeypatch.setattr("sinkscope.evaluation.peak._RESET", nowhere)
    with peak_memory(torch.device("cpu")) as peak:
        torch.ones(1)
    assert peak.nbytes is None
