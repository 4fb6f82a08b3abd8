"""Files that are the same each time, and leave no trace elsewhere."""

from io import BytesIO

from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image

from training.reporting.pictures import png


def drawn() -> bytes:
    figure = Figure((2, 1), layout="constrained")
    figure.subplots().set(xlabel="images", ylabel="share")
    return png(figure)


def test_a_figure_gives_the_same_bytes_each_time_without_a_date_or_a_program() -> None:
    assert drawn() == drawn()
    with Image.open(BytesIO(drawn())) as picture:
        assert picture.size == (240, 120)
        assert picture.info.keys() <= {"dpi"}


def test_drawing_goes_round_matplotlib_s_global_state() -> None:
    drawn()
    assert pyplot.get_fignums() == []
