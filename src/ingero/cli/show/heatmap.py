"""The heat map of an answer, written as SVG or PNG according to the file name."""

from pathlib import Path
from typing import Any

from ingero.compiled import install_command
from ingero.core.blame.answer import Answer
from ingero.core.blame.drawing import PAPER, Drawing, to_svg
from ingero.core.blame.heatmap import draw
from ingero.errors import Unavailable
from ingero.files import replacing_output

# characters that the built-in font lacks
PLAIN = str.maketrans({"◀": "<", "–": "-", "×": "x", "…": "...", "≥": ">="})
SCALE = 2  # pixels of a PNG per unit, so that it stays sharp on a modern screen


def write_picture(path: Path, answer: Answer, title: str) -> None:
    """Draw the heat map of `answer` into `path`."""
    try:
        drawing = draw(answer, title)
    except ValueError as error:
        raise Unavailable(f"no picture: {error}") from error
    try:
        if path.suffix.lower() == ".svg":
            with replacing_output(path) as file:
                file.write(to_svg(drawing).encode())
        else:
            _write_png(path, drawing)
    except OSError as error:
        raise Unavailable(
            f"--picture {path}: {error.strerror or error}; name a file in an existing folder"
        ) from error


def _write_png(path: Path, drawing: Drawing) -> None:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise Unavailable(
            f"a PNG needs Pillow: {install_command('all')}; or ask for a .svg"
        ) from error
    image = Image.new("RGB", (drawing.width * SCALE, drawing.height * SCALE), PAPER)
    canvas = ImageDraw.Draw(image)
    for box in drawing.boxes:
        corner = (round((box.x + box.width) * SCALE) - 1, round((box.y + box.height) * SCALE) - 1)
        canvas.rectangle(((round(box.x * SCALE), round(box.y * SCALE)), corner), fill=box.fill)
    fonts: dict[int, Any] = {}
    for label in drawing.labels:
        font = fonts.setdefault(label.size, ImageFont.load_default(size=label.size * SCALE))
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[label.anchor]
        text = label.text.translate(PLAIN)
        stroke = 1 if label.bold else 0
        canvas.text(
            (label.x * SCALE, label.y * SCALE),
            text,
            fill=label.fill,
            font=font,
            anchor=anchor,
            stroke_width=stroke,
        )
    with replacing_output(path) as file:
        image.save(file, format="PNG")
