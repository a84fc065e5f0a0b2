"""Attention sinks in a recorded sample: find them, see where they are, what they hold and how they move.

Everything takes one sample, an `xarray.Dataset` with the dims `(step, layer, head, position)`, works along named dims
in any order, and carries further dims along. `summarise` makes all tables over many samples.
"""

from sinkscope.sinks.ar import alpha_of_maps, causal_alpha, sink_k
from sinkscope.sinks.find import (
    EPSILONS,
    find_sinks,
    main_sink_strength,
    mark_sinks,
    pick,
    sink_positions,
    sinks_per_layer,
    sweep_epsilon,
    top_positions,
)
from sinkscope.sinks.kinds import KINDS, sink_kinds
from sinkscope.sinks.lexicon import CLASSES, Lexicon
from sinkscope.sinks.masks import compare_masks, mask_name
from sinkscope.sinks.motion import (
    displacement,
    jaccard,
    jaccard_layers,
    jaccard_steps,
    recall_of_first,
    sink_lifetimes,
    sink_motion,
    sink_variance,
)
from sinkscope.sinks.queries import GROUPS, UNIONS, group_size, received_from
from sinkscope.sinks.rules import RULES, Excess, First, SinkRule, Threshold, TopK, ZScore, make_rule, read_rule
from sinkscope.sinks.scales import SCALES, key_count, scaled
from sinkscope.sinks.surroundings import distance_maps, norm_ratio, sink_classes, sink_distances, sink_tokens
from sinkscope.sinks.tables import TABLES, SinkReport, summarise, table_rows

__all__ = [
    "CLASSES",
    "EPSILONS",
    "GROUPS",
    "KINDS",
    "RULES",
    "SCALES",
    "TABLES",
    "UNIONS",
    "Excess",
    "First",
    "Lexicon",
    "SinkReport",
    "SinkRule",
    "Threshold",
    "TopK",
    "ZScore",
    "alpha_of_maps",
    "causal_alpha",
    "compare_masks",
    "displacement",
    "distance_maps",
    "find_sinks",
    "group_size",
    "jaccard",
    "jaccard_layers",
    "jaccard_steps",
    "key_count",
    "main_sink_strength",
    "make_rule",
    "mark_sinks",
    "mask_name",
    "norm_ratio",
    "pick",
    "read_rule",
    "recall_of_first",
    "received_from",
    "scaled",
    "sink_classes",
    "sink_distances",
    "sink_k",
    "sink_kinds",
    "sink_lifetimes",
    "sink_motion",
    "sink_positions",
    "sink_tokens",
    "sink_variance",
    "sinks_per_layer",
    "summarise",
    "sweep_epsilon",
    "table_rows",
    "top_positions",
]
