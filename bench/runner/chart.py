"""The kinds of charts: bars with ranges, dots, lines and stacked bars."""

from __future__ import annotations

import dataclasses
import statistics

from .spread import Spread
from .svg import Drawing, Scale, number, text_width

_LEFT = 24.0


@dataclasses.dataclass(frozen=True)
class _Sheet:
    """The common part of charts with horizontal bars: groups of rows under a legend, with one scale below."""

    drawing: Drawing
    begin: float  # where bars begin
    end: float
    top: float
    height: float

    @classmethod
    def of(
        cls,
        title: str,
        description: str,
        legend: list[tuple[str, int]],
        groups: list[tuple[str, list[tuple[str, str]]]],
    ) -> _Sheet:
        """`groups`: the names and labels of the bars."""
        rows = [row for _, group in groups for row in group]
        names = max((text_width(name) for name, _ in rows), default=60)
        labels = max((text_width(label) for _, label in rows), default=60)
        begin = _LEFT + names + 12
        width = max(870.0, begin + 420 + labels + 20)
        drawing = Drawing(width, title, description)
        y = drawing.heading(_LEFT)
        drawing.legend(_LEFT, y + 14, legend)
        height = sum(_group_head(name) + 22 * len(group) + 6 for name, group in groups)
        return cls(drawing, begin, width - labels - 20, y + 34, height)

    def grid(self, scale: Scale) -> None:
        bottom = self.top + self.height
        for tick in scale.ticks():
            x = scale.at(tick)
            self.drawing.line(x, self.top, x, bottom, "grid")
            self.drawing.text(x, bottom + 18, number(tick), "quiet", "middle")

    def group(self, name: str, y: float, rows: int) -> float:
        """Writes its name; returns the position of its first bar."""
        if name:
            self.drawing.text(_LEFT, y + 18, name)
        y += _group_head(name)
        self.drawing.line(self.begin, y, self.begin, y + 22 * rows, "axis")
        return y

    def render(self, axis: str, mark: float | None) -> str:
        """`mark`: the position of the line with which all are compared."""
        bottom = self.top + self.height
        if mark is not None:
            self.drawing.line(mark, self.top, mark, bottom, "mark")
        self.drawing.text(self.begin, bottom + 40, axis, "quiet")
        return self.drawing.render(bottom + 56)


def _group_head(name: str) -> float:
    return 26 if name else 6


@dataclasses.dataclass(frozen=True)
class Bar:
    """A named value; the whisker spans its range."""

    name: str
    value: Spread
    colour: int
    label: str


def bars(
    title: str,
    description: str,
    groups: list[tuple[str, list[Bar]]],
    legend: list[tuple[str, int]],
    axis: str,
    mark: float | None = None,
    logarithmic: bool = False,
) -> str:
    """Horizontal bars in groups with one scale. `mark`: a value with which all are compared."""
    everything = [bar for _, group in groups for bar in group]
    texts = [(name, [(bar.name, bar.label) for bar in group]) for name, group in groups]
    sheet = _Sheet.of(title, description, legend, texts)
    drawing, begin = sheet.drawing, sheet.begin
    highest = max([bar.value.high for bar in everything] + [mark or 0.0])
    # A logarithmic scale begins at `mark` (lower if a value is), so that a bar without gain has no length.
    low = min([bar.value.low for bar in everything] + [mark or 1.0]) if logarithmic else 0.0
    scale = Scale(low, highest * 1.02, begin, sheet.end, logarithmic)
    sheet.grid(scale)
    y = sheet.top
    for name, group in groups:
        y = sheet.group(name, y, len(group))
        for bar in group:
            middle = y + 10
            drawing.text(begin - 10, middle + 4.5, bar.name, "quiet", "end")
            drawing.box(begin, y + 2, scale.at(bar.value.median) - begin, 16, f"c{bar.colour}")
            end = scale.at(bar.value.median)
            if bar.value.high > bar.value.low:
                a, end = scale.at(bar.value.low), scale.at(bar.value.high)
                drawing.line(a, middle, end, middle, "whisker")
                drawing.line(a, middle - 4, a, middle + 4, "whisker")
                drawing.line(end, middle - 4, end, middle + 4, "whisker")
            drawing.text(max(end, scale.at(bar.value.median)) + 8, middle + 4.5, bar.label)
            y += 22
        y += 6
    return sheet.render(axis, None if mark is None or logarithmic else scale.at(mark))


@dataclasses.dataclass(frozen=True)
class Dots:
    """A named row with all its values."""

    name: str
    values: list[float]
    colour: int
    label: str


def dots(
    title: str,
    description: str,
    groups: list[tuple[str, list[Dots]]],
    legend: list[tuple[str, int]],
    axis: str,
    mark: float,
) -> str:
    """Rows of dots in groups with one scale, and a tick at the median of each row. `mark`: as for `bars`."""
    everything = [value for _, group in groups for row in group for value in row.values]
    texts = [(name, [(row.name, row.label) for row in group]) for name, group in groups]
    sheet = _Sheet.of(title, description, legend, texts)
    drawing = sheet.drawing
    low, high = min([*everything, mark]), max([*everything, mark])
    margin = 0.03 * (high - low)
    scale = Scale(low - margin, high + margin, sheet.begin, sheet.end)
    sheet.grid(scale)
    y = sheet.top
    for name, group in groups:
        y = sheet.group(name, y, len(group))
        for row in group:
            middle = y + 10
            drawing.text(sheet.begin - 10, middle + 4.5, row.name, "quiet", "end")
            for value in row.values:
                drawing.dot(scale.at(value), middle, f"c{row.colour} round")
            median = scale.at(statistics.median(row.values))
            drawing.line(median, middle - 8, median, middle + 8, "median")
            drawing.text(sheet.end + 8, middle + 4.5, row.label)
            y += 22
        y += 6
    return sheet.render(axis, scale.at(mark))


@dataclasses.dataclass(frozen=True)
class Line:
    """A named series of points; dashed series are computed, not measured."""

    name: str
    points: list[tuple[float, float]]
    colour: int
    dashed: bool = False


def lines(
    title: str,
    description: str,
    series: list[Line],
    x_axis: str,
    y_axis: str,
    x_ticks: list[tuple[float, str]],
    logarithmic: bool = False,
) -> str:
    """Lines over numbered positions. The vertical axis begins at zero unless it is logarithmic."""
    width, plot = 870.0, 320.0
    drawing = Drawing(width, title, description)
    y = drawing.heading(_LEFT)
    solid = [line for line in series if not line.dashed]
    drawing.legend(_LEFT, y + 14, [(line.name, line.colour) for line in solid])
    top = y + 56
    values = [v for line in series for _, v in line.points]
    low = min(values) / 1.5 if logarithmic else 0.0
    vertical = Scale(low, max(values) * 1.1, top + plot, top, logarithmic)
    positions = [p for p, _ in x_ticks]
    margin = (positions[-1] - positions[0]) * 0.05 or 1.0
    across = Scale(positions[0] - margin, positions[-1] + margin, 84, width - 30)
    drawing.text(_LEFT, top - 14, y_axis, "quiet")
    for tick in vertical.ticks():
        drawing.line(84, vertical.at(tick), width - 30, vertical.at(tick), "grid")
        drawing.text(76, vertical.at(tick) + 4.5, number(tick), "quiet", "end")
    for position, label in x_ticks:
        drawing.text(across.at(position), top + plot + 20, label, "quiet", "middle")
    drawing.line(84, top + plot, width - 30, top + plot, "axis")
    for line in series:
        points = [(across.at(p), vertical.at(v)) for p, v in line.points]
        drawing.path(points, f"s{line.colour}" + (" dashed" if line.dashed else ""))
        if not line.dashed:
            for x, y in points:
                drawing.dot(x, y, f"c{line.colour}")
    drawing.text((84 + width - 30) / 2, top + plot + 44, x_axis, "quiet", "middle")
    return drawing.render(top + plot + 62)


@dataclasses.dataclass(frozen=True)
class Stack:
    """A named bar of pieces (length, colour), from left to right."""

    name: str
    pieces: list[tuple[float, int]]
    label: str


def stacks(
    title: str,
    description: str,
    groups: list[tuple[str, list[Stack]]],
    legend: list[tuple[str, int]],
    axis: str,
    mark: float | None = None,
) -> str:
    """Horizontal stacked bars in groups with one scale from zero. `mark`: as for `bars`."""
    everything = [stack for _, group in groups for stack in group]
    texts = [(name, [(stack.name, stack.label) for stack in group]) for name, group in groups]
    sheet = _Sheet.of(title, description, legend, texts)
    drawing, begin = sheet.drawing, sheet.begin
    highest = max(sum(length for length, _ in stack.pieces) for stack in everything)
    scale = Scale(0.0, max(highest, mark or 0.0) * 1.02, begin, sheet.end)
    sheet.grid(scale)
    y = sheet.top
    for name, group in groups:
        y = sheet.group(name, y, len(group))
        for stack in group:
            drawing.text(begin - 10, y + 14.5, stack.name, "quiet", "end")
            reached = 0.0
            for length, colour in stack.pieces:
                left, reached = scale.at(reached), reached + max(length, 0.0)
                drawing.box(left, y + 2, scale.at(reached) - left, 16, f"c{colour}")
            drawing.text(scale.at(reached) + 8, y + 14.5, stack.label)
            y += 22
        y += 6
    return sheet.render(axis, None if mark is None else scale.at(mark))
