"""Charts as SVG text in one style, readable on light and dark backgrounds."""

from __future__ import annotations

import dataclasses
import math
from html import escape

_STYLE = """
    text { font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 13px; fill: #24292f; }
    .title { font-size: 17px; font-weight: 600; }
    .quiet { fill: #57606a; }
    .ground { fill: #ffffff; }
    .grid { stroke: #d8dee4; stroke-width: 1; }
    .axis { stroke: #57606a; stroke-width: 1; }
    .whisker { stroke: #24292f; stroke-width: 1.2; }
    .mark { stroke: #24292f; stroke-width: 1.4; stroke-dasharray: 5 4; }
    .line { fill: none; stroke-width: 2; }
    .dashed { stroke-dasharray: 5 4; }
    .round { fill-opacity: 0.55; }
    .median { stroke: #24292f; stroke-width: 2; }
    .c0 { fill: #3f6ea6; } .s0 { stroke: #3f6ea6; }
    .c1 { fill: #c7833a; } .s1 { stroke: #c7833a; }
    .c2 { fill: #5f8d6b; } .s2 { stroke: #5f8d6b; }
    .c3 { fill: #8b6fa8; } .s3 { stroke: #8b6fa8; }
    .c4 { fill: #9aa0a6; } .s4 { stroke: #9aa0a6; }
    .c5 { fill: #b4575f; } .s5 { stroke: #b4575f; }
    .c6 { fill: #c9ced4; } .s6 { stroke: #c9ced4; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .quiet { fill: #9aa4ae; }
      .ground { fill: #0d1117; }
      .grid { stroke: #30363d; }
      .axis { stroke: #9aa4ae; }
      .whisker, .mark, .median { stroke: #e6edf3; }
      .c0 { fill: #6f9fd8; } .s0 { stroke: #6f9fd8; }
      .c1 { fill: #d99b55; } .s1 { stroke: #d99b55; }
      .c2 { fill: #7fb08c; } .s2 { stroke: #7fb08c; }
      .c3 { fill: #a98fc7; } .s3 { stroke: #a98fc7; }
      .c4 { fill: #868d94; } .s4 { stroke: #868d94; }
      .c5 { fill: #d6828a; } .s5 { stroke: #d6828a; }
      .c6 { fill: #565d65; } .s6 { stroke: #565d65; }
    }
"""


def text_width(text: str, size: float = 13.0) -> float:
    """The approximate width of a drawn text in pixels."""
    return sum(0.33 if c in " .,:;il|'!()[]" else 0.6 for c in text) * size


class Drawing:
    """Shapes in the order of drawing. Unit: pixels, origin at the top left."""

    def __init__(self, width: float, title: str, description: str) -> None:
        self.width = width
        self._title, self._description = title, description
        self._shapes: list[str] = []

    def text(self, x: float, y: float, text: str, css: str = "", anchor: str = "start") -> None:
        self._shapes.append(
            f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str) -> None:
        self._shapes.append(
            f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, css: str) -> None:
        self._shapes.append(
            f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
            f'height="{max(height, 0):.1f}"/>'
        )

    def path(self, points: list[tuple[float, float]], css: str) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(f'<polyline class="line {css}" points="{joined}"/>')

    def dot(self, x: float, y: float, css: str) -> None:
        self._shapes.append(f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')

    def heading(self, left: float) -> float:
        """Draws title and description at the top; returns their height."""
        self.text(left, 34, self._title, "title")
        self.text(left, 56, self._description, "quiet")
        return 72.0

    def legend(self, left: float, y: float, entries: list[tuple[str, int]]) -> None:
        """Draws squares with names in one row."""
        x = left
        for name, colour in entries:
            self.box(x, y - 10, 12, 12, f"c{colour}")
            self.text(x + 18, y, name, "quiet")
            x += 18 + text_width(name) + 22

    def render(self, height: float) -> str:
        """Returns the whole file."""
        w, h = f"{self.width:.0f}", f"{height:.0f}"
        shapes = "\n  ".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" '
            f'height="{h}" role="img">\n  <title>{escape(self._title)}</title>\n'
            f"  <desc>{escape(self._description)}</desc>\n  <style>{_STYLE}  </style>\n"
            f'  <rect class="ground" x="0" y="0" width="{w}" height="{h}"/>\n  {shapes}\n</svg>\n'
        )


@dataclasses.dataclass(frozen=True)
class Scale:
    """Maps values to pixels, linearly or by powers of ten."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The position of a value; values outside are drawn at the edge."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round values inside, about five of them."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if self.high / self.low < 200 else (1,)
            every = [10.0**p * s for p in powers for s in steps]
        else:
            step = nice_step((self.high - self.low) / 5)
            first = math.ceil(self.low / step - 1e-9)
            every = [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [v for v in every if self.low * (1 - 1e-9) <= v <= self.high * (1 + 1e-9)]


def nice_step(rough: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))


def number(value: float) -> str:
    """The label of a tick."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:g}"
