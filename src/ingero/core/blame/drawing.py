"""A drawing as plain shapes that SVG and PNG share."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

TEXT, FAINT, PAPER = "#1b1f24", "#656d76", "#ffffff"


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; `hint` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A text whose baseline starts, ends or is centred at (x, y), as `anchor` says."""

    x: float
    y: float
    text: str
    size: int = 12
    anchor: str = "start"
    fill: str = TEXT
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes in pixels, in painting order."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]


def to_svg(drawing: Drawing) -> str:
    """Return the drawing as a standalone SVG document, with hints as tooltips."""
    width, height = drawing.width, drawing.height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
    ]
    for box in drawing.boxes:
        hint = f"<title>{escape(box.hint)}</title>" if box.hint else ""
        parts.append(
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" '
            f'fill="{box.fill}">{hint}</rect>'
        )
    for label in drawing.labels:
        weight = ' font-weight="600"' if label.bold else ""
        parts.append(
            f'<text x="{label.x:g}" y="{label.y:g}" font-size="{label.size}" '
            f'text-anchor="{label.anchor}" fill="{label.fill}"{weight}>{escape(label.text)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
