"""The house style leaves no trace, is read in grey, and the same inputs give the same bytes."""

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from report_samples import causal, log_row, made, with_maps

from sinkscope.errors import UserError
from sinkscope.report import figures
from sinkscope.report.figures.style import LINES, ShownFigure, fresh_axes, heat_colors, owner, panels, round_numbers
from sinkscope.sinks import Excess


def drawn() -> Figure:
    subjects = (figures.Subject("a", [made()], made()), figures.Subject("b", [causal()], causal()))
    return figures.FIGURES["heat-map"].draw(figures.Inputs(subjects=subjects, rule=Excess(2.0)))


def test_no_setting_of_matplotlib_is_changed(tmp_path: Path) -> None:
    sample = with_maps(made())
    with mpl.rc_context({"font.size": 23.0, "text.color": "green", "axes.grid": True}):
        before = dict(mpl.rcParams)
        figures.heat_map(sample)
        figures.attention_map(sample, step=1, layer=0, head=2)
        figures.score_histogram([sample])
        figures.layer_head_map([sample])
        figures.top_positions({"a": sample})
        figures.epsilon_curves({"a": [sample]})
        figures.token_bars([sample])
        figures.lifetime_curves({"a": [sample]})
        figures.displacement_shares({"a": [sample]})
        figures.emergence_curves("twin", [log_row(1)])
        ax = figures.accuracy_curves("twin", [log_row(1)])
        figures.write_figure(ax.get_figure(root=True), tmp_path / "a.png")  # type: ignore[arg-type]
        with pytest.raises(UserError):
            figures.token_bars([sample.drop_vars("canvas")])
        assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("ending", figures.FORMATS)
def test_the_same_inputs_give_the_same_bytes(tmp_path: Path, ending: str) -> None:
    """Whatever the user has set."""
    figures.write_figure(drawn(), tmp_path / f"one.{ending}")
    with mpl.rc_context({"svg.hashsalt": "other", "font.size": 23.0, "savefig.dpi": 40, "text.usetex": True}):
        figures.write_figure(drawn(), tmp_path / f"two.{ending}")
    one = (tmp_path / f"one.{ending}").read_bytes()
    assert one == (tmp_path / f"two.{ending}").read_bytes()
    assert not re.search(rb"20\d\d-\d\d-\d\d|D:20\d\d|CreationDate", one)


def inputs() -> figures.Inputs:
    """Two models, one of them with maps; two trainings; an ablation with an unequal control."""
    samples = {"model-a": with_maps(made()), "another model with a longer name": causal()}
    subjects = tuple(figures.Subject(label, [one], one) for label, one in samples.items())
    rows = tuple(log_row(point, tasks=9) for point in (1, 2))
    trainings = tuple(figures.Training(name=name, rows=rows) for name in ("one", "other", "third"))
    return figures.Inputs(subjects=subjects, rule=Excess(2.0), trainings=trainings)


@pytest.mark.parametrize("centimetres", [8.5, 17.0])
@pytest.mark.parametrize(
    "name",
    ["attention-maps", "decoding", "epsilon", "groups", "heat-map", "layer-heads", "lifetimes", "scores", "tokens",
     "top-position", "training"],
)  # fmt: skip
@figures.house_style
def test_nothing_is_clipped_and_no_legend_lies_on_a_panel(name: str, centimetres: float) -> None:
    with figures.page_width(centimetres):
        figure = figures.FIGURES[name].draw(inputs())
    assert figure.get_figwidth() <= centimetres / 2.54 + 1e-9
    figure.draw_without_rendering()
    page = figure.bbox.padded(2)
    drawn = figure.get_tightbbox().transformed(figure.dpi_scale_trans)  # all but what takes no part in the layout
    beside = [text.get_window_extent() for ax in figure.axes for text in ax.texts if text.get_visible()]
    for box in (drawn, *beside, *(legend.get_window_extent() for legend in figure.findobj(Legend))):
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
    panels = [ax.get_window_extent() for ax in figure.axes]
    for legend in figure.findobj(Legend):
        assert not any(legend.get_window_extent().padded(-1).overlaps(panel) for panel in panels)
    titles = [text for ax in figure.axes if (text := ax._left_title).get_text()]  # type: ignore[attr-defined]
    for number, one in enumerate(titles):
        for other in titles[:number]:
            assert not one.get_window_extent().padded(-1).overlaps(other.get_window_extent()), (one, other)


def test_a_column_has_its_panels_below_one_another() -> None:
    with figures.page_width(8.5):
        narrow = figures.FIGURES["heat-map"].draw(inputs())
    wide = figures.FIGURES["heat-map"].draw(inputs())
    for figure, columns in ((narrow, 1), (wide, 2)):
        grid = figure.axes[0].get_gridspec()
        assert grid is not None and grid.ncols == columns
    for refused in (5.0, 61.0):
        with pytest.raises(UserError, match="6 to 60 cm wide"), figures.page_width(refused):
            pass


def test_svg_keeps_its_text(tmp_path: Path) -> None:
    figures.write_figure(drawn(), tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"model-a: made", "position", "step", "sink in half or more"} <= set(texts)
    assert any(text.startswith("rule: excess") for text in texts)


def test_pdf_keeps_its_fonts(tmp_path: Path) -> None:
    figures.write_figure(drawn(), tmp_path / "a.pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert b"/CIDFontType2" in content  # TrueType
    assert b"/Type3" not in content


def test_pyplot_is_never_imported() -> None:
    """It keeps figures alive and chooses a backend, which is the user's to do."""
    assert figures.__file__ is not None
    modules = list(Path(figures.__file__).parent.glob("*.py"))
    assert len(modules) > 10
    for module in modules:
        names = [
            node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not [node for node in names if "pyplot" in ast.unparse(node)]


def lightness() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """CIE L* of the heat colours."""
    rgb = heat_colors()(np.arange(256))[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    light: np.ndarray[tuple[int], np.dtype[np.float64]] = np.where(
        luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance
    )
    return light


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    for figure in (owner(fresh_axes()), panels(2, height=1.0)[0]):
        assert isinstance(figure, ShownFigure)
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_heat_colours_darken_evenly_from_white_to_black() -> None:
    light = lightness()
    assert light[0] == pytest.approx(100, abs=0.1)
    assert light[-1] < 8
    steps = -np.diff(light)
    assert (steps > 0).all()
    assert steps.max() < 3 * steps.mean()
    assert steps.min() > 0.1 * steps.mean()


def test_compared_lines_differ_in_more_than_colour() -> None:
    assert len({str(dash) for _, dash, _ in LINES}) == len(LINES)
    assert len({marker for _, _, marker in LINES}) == len(LINES)
    assert len({color for color, _, _ in LINES}) == len(LINES)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.5, 15, [0.5, 1, 2, 5, 10]),
        (0.001, 1, [0.001, 0.01, 0.1, 1]),
        (2, 3, [2]),
        (0, 3, []),
        (0.3, 60, [0.5, 1, 2, 5, 10, 20, 50]),
    ],
)
def test_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert round_numbers(low, high) == expected


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = figures.top_positions({"a": made()}).get_figure(root=True)
    assert figure is not None
    with pytest.raises(UserError, match=r"svg, pdf, png"):
        figures.write_figure(figure, tmp_path / "a.bmp")
    with pytest.raises(UserError, match="can't be written"):
        figures.write_figure(figure, tmp_path / "nowhere" / "a.svg")
    (tmp_path / "a.svg").write_text("old")

    def full(_: Path, __: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        figures.write_figure(figure, tmp_path / "a.svg")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.svg", "old")]
