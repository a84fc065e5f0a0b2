"""What is recorded while a model generates: prompts in, labelled arrays out, safe on disk at every step."""

from sinkscope.trace.layout import Counts, Layout, Maps, Statistics, plan_layout
from sinkscope.trace.passes import OwnModule, open_module, own_module, record_passes
from sinkscope.trace.planning import Plan, Recording, named, planned_layout
from sinkscope.trace.prompts import Prompt, read_prompts, text_prompt
from sinkscope.trace.reading import Trace, open_trace
from sinkscope.trace.recording import Progress, checked, record, record_shard
from sinkscope.trace.sample import SampleWriter
from sinkscope.trace.shards import Shard
from sinkscope.trace.store import TraceStore, begun, check_output

__all__ = [
    "Counts",
    "Layout",
    "Maps",
    "OwnModule",
    "Plan",
    "Progress",
    "Prompt",
    "Recording",
    "SampleWriter",
    "Shard",
    "Statistics",
    "Trace",
    "TraceStore",
    "begun",
    "check_output",
    "checked",
    "named",
    "open_module",
    "open_trace",
    "own_module",
    "plan_layout",
    "planned_layout",
    "read_prompts",
    "record",
    "record_passes",
    "record_shard",
    "text_prompt",
]
