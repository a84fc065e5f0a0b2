"""Figures of key norms: lines and maps hold the numbers of the diagnostics."""

import numpy as np
import pytest
import xarray as xr
from report_samples import HEADS, LAYERS, caption_of, figure_of, legend_labels, lines, made, settings_of, shown, xs, ys

from sinkscope.compression.diagnostics import norm_correlation, summarise_norms
from sinkscope.errors import UserError
from sinkscope.report.figures import FIGURES, Inputs, Subject
from sinkscope.report.figures.key_norms import PANELS, correlations, norm_curves, norm_map
from sinkscope.sinks import TopK

RULE = TopK(1)


def with_norms(seed: int, *, steps: int = 7, model: str = "model-a") -> xr.Dataset:
    """A diffusion sample with key norms of as many key heads as query heads."""
    sample = made(seed, name=f"made-{seed}", model=model)
    norm = np.random.default_rng(seed).uniform(1, 9, size=sample["received"].shape)
    return sample.assign(key_norm=(("step", "layer", "kv_head", "position"), norm)).isel(step=slice(steps))


def inputs(*models: str) -> Inputs:
    subjects = []
    for number, model in enumerate(models):
        samples = [with_norms(number, model=model), with_norms(number + 5, steps=4, model=model)]
        subjects.append(Subject(model, samples, samples[0]))
    return Inputs(subjects=tuple(subjects), rule=RULE)


def test_lines_are_the_tables_by_layer() -> None:
    samples = [with_norms(1), with_norms(2)]
    axes = norm_curves({"one": samples, "other": samples[:1]}, RULE)
    report = summarise_norms(samples, RULE)
    for ax, name in zip(axes, PANELS, strict=True):
        first = lines(ax, "mean")[0]
        assert xs(first).tolist() == list(range(LAYERS))
        assert ys(first) == pytest.approx(report.tables[name][name].values)
        assert len(lines(ax, "mean")) == 2
        chance = lines(ax, "chance")
        assert len(chance) == (0 if name == "correlation" else 2)
        if name == "overlap":
            assert ys(chance[0]) == pytest.approx(report.tables[name]["chance"].values)
        if name == "loss":
            assert ys(chance[0]).tolist() == [1.0] * LAYERS
    assert "rule: top-k, k 1; queries: all; kept: 0.5 of the keys" in caption_of(figure_of(axes[0]))


@pytest.mark.parametrize("across", ["kv_head", "step"])
def test_maps_are_means_over_samples_that_have_the_cell(across: str) -> None:
    samples = [with_norms(1), with_norms(2, steps=4)]
    found = correlations(samples, across=across)
    each = [norm_correlation(sample) for sample in samples]
    for layer in range(LAYERS):
        for place in range(HEADS if across == "kv_head" else 7):
            cells = [
                one.sel(layer=layer).sel({across: place}).values.ravel() for one in each if place in one[across].values
            ]
            assert float(found.sel(layer=layer).sel({across: place})) == pytest.approx(np.concatenate(cells).mean())
    ax = norm_map(samples, across=across)
    assert np.asarray(shown(ax)) == pytest.approx(found.values)
    low, high = ax.images[0].get_clim()
    assert low == -high and high >= float(abs(found).max())
    assert "queries: all" in settings_of(ax)


def test_figures_by_name_are_drawn_for_one_trace_and_for_several() -> None:
    for name in ("key-norms", "key-norm-heads", "key-norm-steps"):
        alone, both = FIGURES[name].draw(inputs("model-a")), FIGURES[name].draw(inputs("model-a", "model-b"))
        assert len(both.axes) >= len(alone.axes)
    images = [ax.images[0] for ax in FIGURES["key-norm-heads"].draw(inputs("model-a", "model-b")).axes if ax.images]
    assert images[0].get_clim() == images[1].get_clim()
    lined = FIGURES["key-norms"].draw(inputs("model-a", "model-b"))
    assert [text.get_text() for text in lined.legends[0].get_texts()] == ["model-a", "model-b"]
    assert legend_labels(lined.axes[0]) == []


def test_traces_without_norms_are_left_out_with_the_reason() -> None:
    sample = made(1)
    plain = Inputs(subjects=(Subject("a", [sample], sample),), rule=RULE)
    for name in ("key-norms", "key-norm-heads", "key-norm-steps"):
        with pytest.raises(UserError, match="no key norms: record it again with --norms"):
            FIGURES[name].draw(plain)
        with pytest.raises(UserError, match="no trace was given"):
            FIGURES[name].draw(Inputs())
