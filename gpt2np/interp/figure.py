"""A matplotlib figure that Jupyter displays, even if pyplot is not imported."""

from io import BytesIO

from matplotlib.figure import Figure


class DisplayedFigure(Figure):
    """A figure that Jupyter displays as a PNG image."""

    def _repr_png_(self) -> bytes:
        image = BytesIO()
        self.savefig(image, format="png")
        return image.getvalue()
