"""Settings refuse what can't be meant, in one line that says what to do."""

import pytest

from sinkscope.decoding import Decoding, Denoising
from sinkscope.errors import UserError


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"gen_length": -1}, "gen_length must be at least 0, got -1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"block_length": 0}, "block_length must be at least 1, got 0"),
        ({"schedule": "fast"}, "unknown schedule 'fast'; choose one of blocks, shares, linear, dream"),
        (
            {"confidence": "best"},
            "unknown confidence 'best'; choose one of max-prob, margin, entropy, random, left-to-right",
        ),
        ({"cache": "full"}, "unknown cache 'full'; choose one of prefix, dual, blocks"),
        ({"threshold": 0.0}, "threshold must be above 0 and at most 1, got 0"),
        ({"threshold": 0.9, "confidence": "entropy"}, "threshold compares probabilities, confidence 'entropy' is none"),
        ({"temperature": -1.0}, "temperature must be 0 or a number of at least 0.001, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be 0 or a number of at least 0.001, got nan"),
        ({"temperature": 1e-45}, "temperature must be 0 or a number of at least 0.001"),
        ({"cfg_scale": float("nan")}, "cfg_scale must be a number from 0 to 10000, got nan"),
        ({"cfg_scale": 1e308}, "cfg_scale must be a number from 0 to 10000, got 1e"),
        ({"temperature": "warm"}, "temperature must be a number, got 'warm'"),
        ({"temperature": float("inf")}, "temperature must be 0 or a number of at least"),
        ({"top_p": "0.9"}, "top_p must be a number"),
        ({"top_p": float("nan")}, "top_p must be above 0"),
        ({"threshold": True}, "threshold must be a number"),
        ({"steps": True}, "steps must be a whole number"),
        ({"gen_length": 4.0}, r"gen_length must be a whole number, got 4\.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"cfg_scale": -0.5}, "cfg_scale must be a number from 0 to 10000, got -0.5"),
        ({"gen_length": 0, "cache": "dual"}, "a block cache needs gen_length > 0"),
    ],
)
def test_denoising_refuses(way: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Denoising(**way)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("way", "message"),
    [({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"), ({"top_p": 0.0}, "top_p must be above 0")],
)
def test_decoding_refuses(way: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Decoding(**way)  # type: ignore[arg-type]


def test_blocks_are_counted() -> None:
    assert Denoising(gen_length=96, block_length=32, steps=96).blocks == 3
    assert Denoising(gen_length=96, block_length=None, steps=96).blocks == 1
    assert Denoising(gen_length=0).blocks == 1
