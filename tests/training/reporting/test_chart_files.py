"""Rendered chart files are deterministic and leave matplotlib's global state unchanged."""

from io import BytesIO

from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

from training.reporting.chart_files import png


def rendered() -> bytes:
    figure = Figure((2, 1), layout="constrained")
    figure.subplots().set(xlabel="images", ylabel="share")
    return png(figure)


def test_equal_figures_give_equal_bytes_without_date_and_software() -> None:
    assert rendered() == rendered()
    with Image.open(BytesIO(rendered())) as image:
        assert image.size == (240, 120)
        assert image.info.keys() <= {"dpi"}


def test_rendering_opens_no_pyplot_figure() -> None:
    rendered()
    assert pyplot.get_fignums() == []
