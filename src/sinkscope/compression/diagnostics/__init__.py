"""Does a low key norm mean high attention, and what would be lost by believing so?

Measures of an order in which keys are dropped: attention loss, rank correlation, overlap with sinks, stability; each
beside what a random order gives. Of recorded samples, or of a model at work.
"""

from sinkscope.compression.diagnostics.measures import (
    AMONG,
    Which,
    kept_stability,
    norm_correlation,
    norm_loss,
    pair_norms,
    sink_overlap,
)
from sinkscope.compression.diagnostics.orders import (
    attention_loss,
    average_ranks,
    expected_jaccard,
    hypergeometric,
    kept,
    over_random,
    places,
    random_correlations,
    random_loss,
    relative_loss,
    spearman,
)
from sinkscope.compression.diagnostics.passes import measure_losses
from sinkscope.compression.diagnostics.report import MEASURES, NORM_TABLES, NormReport, summarise_norms

__all__ = [
    "AMONG",
    "MEASURES",
    "NORM_TABLES",
    "NormReport",
    "Which",
    "attention_loss",
    "average_ranks",
    "expected_jaccard",
    "hypergeometric",
    "kept",
    "kept_stability",
    "measure_losses",
    "norm_correlation",
    "norm_loss",
    "over_random",
    "pair_norms",
    "places",
    "random_correlations",
    "random_loss",
    "relative_loss",
    "sink_overlap",
    "spearman",
    "summarise_norms",
]
