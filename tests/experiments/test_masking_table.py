"""Tables, CSV and Markdown of an ablation say the same, and say how it was made."""

import csv
import io

import numpy as np
from made_cells import SETTINGS, exact, masking_cells, removal

from sinkscope.experiments.masking_table import COLUMNS, TABLES, records
from sinkscope.grids import Outcome, as_csv
from sinkscope.interventions import MaskSinks

HALF, ALL = exact(1, 0, 1, 0), exact(1, 1, 1, 1)
TAKEN = {"sinks": removal(2.0, 0.31, 0.62, 0.62), "random": removal(2.0, 0.07, 0.05, 0.6)}
MASKING = MaskSinks(detect="same", first_step=0, how="values", layers=(0, 2), seed=11)


def test_records_say_how_cells_were_made() -> None:
    plain, sinks, random, second = records(masking_cells(HALF, {"random": [ALL, HALF]}, TAKEN, masking=MASKING))
    for one in (plain, sinks, random, second):
        assert (one["seed"], one["max_example_tokens"], one["texts"], one["batch_size"]) == (3, 29, None, 7)
        assert {name: one[name] for name in ("sinkscope", "torch", "transformers")} == SETTINGS["versions"]
        assert (one["dtype"], one["device"], one["unit"], one["better"]) == ("torch.float32", "cpu", "points", "high")
    assert plain["detect"] is plain["how"] is plain["mask_seed"] is plain["keys_cut"] is None
    assert (sinks["detect"], sinks["how"], sinks["first_step"], sinks["layers"]) == ("same", "values", 0, [0, 2])
    assert (random["mask_seed"], second["mask_seed"]) == (11, 12)
    assert (sinks["difference"], sinks["mass"], sinks["cut_mass"], sinks["sink_mass"]) == (-0.5, 0.31, 0.62, 0.62)


def test_csv_holds_every_record() -> None:
    made = records(masking_cells(HALF, {"random": [ALL]}, TAKEN, masking=MASKING))
    read = list(csv.DictReader(io.StringIO(as_csv(made))))
    assert len(read) == 3
    for one, line in zip(made, read, strict=True):
        assert list(line) == list(one)
        assert float(line["score"]) == one["score"] and line["masked"] == one["masked"]
        assert line["detect"] == (one["detect"] or "") and line["batch_size"] == "7"
    assert read[1]["layers"] == "0 2"


def test_tables_for_people() -> None:
    made = records(masking_cells(HALF, {"random": [ALL, HALF]}, TAKEN, masking=MASKING))
    [(title, some)] = TABLES.grouped(made).items()
    assert title == "m, t: points (higher is better), n = 4"
    plain, sinks, random, second = (TABLES.shown(one) for one in some)
    assert list(sinks) == list(COLUMNS)
    assert (plain["keys"], plain["difference"], plain["received by the map"]) == ("none", "", "")
    assert sinks["difference"] == "-0.500 (too few)"
    assert (sinks["keys masked"], sinks["attention removed"], sinks["received by the map"]) == (
        "2.0",
        "0.310",
        "0.62 of 0.62",
    )
    assert (random["received by the map"], second["masked"]) == ("0.05 of 0.60", "random #2")
    text = TABLES.markdown(made)
    for row in (plain, sinks, random, second):
        assert "| " + " | ".join(row.values()) + " |" in text
    assert title in text and TABLES.settings_line(made) in text and TABLES.legend(list(COLUMNS)) in text


def test_the_line_below_a_table_says_what_was_set() -> None:
    line = TABLES.settings_line(records(masking_cells(HALF, {"random": [ALL]}, TAKEN, masking=MASKING)))
    assert line == (
        "masking: detect same, detect from masked, how values, first step 0, layers 0 2; examples: seed 3, "
        "max example tokens 29, batch size 7; run: dtype torch.float32, device cpu, "
        "sinkscope 0.0, torch 0.1, transformers 0.2"
    )


def test_values_that_differ_in_a_table_are_listed() -> None:
    for sizes, listed in (((7, 7), "7"), ((7, 5), "7 and 5"), ((7, 5, 3, 7), "7, 5 and 3")):
        [cell] = records(masking_cells(HALF, {}, TAKEN, masking=MASKING))[:1]
        made = [{**cell, "batch_size": size} for size in sizes]
        assert f"max example tokens 29, batch size {listed}; run:" in TABLES.settings_line(made)


def test_low_scores_and_other_tables() -> None:
    low = Outcome(np.array([2.0, 3.0]), np.array([1.0, 1.0]), exact=False)
    made = records(masking_cells(low, {"lowest": [low]}, better="low"))
    assert list(TABLES.grouped(made)) == ["m, t: nats a token (lower is better), n = 2"]


def test_the_legend_explains_the_columns_that_are_shown() -> None:
    assert TABLES.legend(["attention removed", "keys masked"]) == (
        "attention removed: at the step itself; keys masked: in a layer and head with sinks"
    )


def test_where_nothing_was_masked_the_row_says_so() -> None:
    made = records(masking_cells(HALF, {}, {"sinks": removal(None)}))
    assert TABLES.shown(made[1])["difference"] == "nothing masked"
    assert "| nothing masked |" in TABLES.markdown(made)
