"""What is recorded while a model generates: prompts in, labelled arrays out, safe on disk at every step."""

from sinkscope.trace.layout import Counts, Layout, Maps, Statistics, plan_layout
from sinkscope.trace.prompts import Prompt, read_prompts, text_prompt
from sinkscope.trace.reading import Trace, open_trace
from sinkscope.trace.recording import Progress, Recording, planned_layout, record
from sinkscope.trace.sample import SampleWriter
from sinkscope.trace.store import TraceStore, check_output

__all__ = [
    "Counts",
    "Layout",
    "Maps",
    "Progress",
    "Prompt",
    "Recording",
    "SampleWriter",
    "Statistics",
    "Trace",
    "TraceStore",
    "check_output",
    "open_trace",
    "plan_layout",
    "planned_layout",
    "read_prompts",
    "record",
    "text_prompt",
]
