"""Charts of the report as inline SVG text.

Drawn by hand rather than by a plotting library: colours are the page's CSS variables, so a chart follows the light
and the dark scheme, and the same numbers always give the same bytes. Sizes are in user units of the view box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 20, 12, 42
STRIP_WIDTH = 760
ROW = 24
Text = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """One method in one chart; ``style`` is its CSS class, which carries colour and dash."""

    label: str
    style: str
    x: Sequence[float | None] = ()
    y: Sequence[float | None] = ()
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Interval:
    """One method's mean with its interval (None with one seed) and the value of every seed."""

    label: str
    style: str
    mean: float
    low: float | None
    high: float | None
    points: Sequence[float] = field(default_factory=tuple)


@dataclass(frozen=True)
class Scale:
    """Map ``low..high`` to ``start..end``; with ``log`` by decades."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return where `value` is drawn."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Return about `count` round numbers inside the range."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            marks = [m * 10.0**d for d in decades for m in (1, 2, 5)]
            inside = [v for v in marks if self.low <= v * (1 + 1e-9) and v <= self.high * (1 + 1e-9)]
            return inside if len(inside) <= 2 * count else [v for v in inside if math.log10(v).is_integer()]
        step = _round_step((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _round_step(rough: float) -> float:
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def percent(value: float) -> str:
    """Return a share as a percentage label, for example ``85 %``."""
    return f"{round(100 * value, 6):g} %"


def points(value: float) -> str:
    """Return a difference of shares in signed points, for example ``+2.5``."""
    rounded = round(100 * value, 6)
    return f"{rounded:+g}".replace("-", "−") if rounded else "0"


def short(value: float) -> str:
    """Return a number for an axis, for example ``1.5k``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def line_chart(series: Sequence[Series], title: str, x_label: str, y_label: str, share: bool = True) -> str:
    """Return mean curves with their bands; a series with a single distinct x is a dashed level line.

    `share` says that y is an accuracy in 0..1, shown in per cent; otherwise y is a plain number.
    """
    xs = [v for s in series for v in s.x if v is not None]
    ys = [v for s in series for line in (s.y, s.low, s.high) for v in line if v is not None]
    if not xs or not ys:
        return empty(title)
    x = Scale(min(0.0, *xs), max(xs) or 1.0, LEFT, WIDTH - RIGHT)
    low, high = (max(0.0, min(ys)), min(1.0, max(ys))) if share else (min(ys), max(ys))
    pad = 0.04 * (high - low) or 0.05
    y = Scale(max(0.0, low - pad), min(1.0, high + pad) if share else high + pad, HEIGHT - BOTTOM, TOP)
    parts = [_axes(x, y, x_label, y_label, short, percent if share else short)]
    for one in series:
        parts.append(f'<g class="s {one.style}"><title>{escape(one.label)}</title>')
        points = [(a, b) for a, b in zip(one.x, one.y, strict=True) if a is not None and b is not None]
        if points and len({a for a, _ in points}) == 1:
            level = y(points[-1][1])
            parts.append(f'<path class="line level" d="M{x.start} {level:.1f}H{x.end}"/></g>')
            continue
        edges = [
            (a, b, c)
            for a, b, c in zip(one.x, one.low, one.high, strict=False)
            if a is not None and b is not None and c is not None
        ]
        if any(b != c for _, b, c in edges):
            upper = [(x(a), y(min(c, y.high))) for a, _, c in edges]
            lower = [(x(a), y(max(b, y.low))) for a, b, _ in reversed(edges)]
            parts.append(f'<path class="band" d="{_path(upper + lower)}Z"/>')
        if len(points) == 1:
            parts.append(f'<circle class="dot" cx="{x(points[0][0]):.1f}" cy="{y(points[0][1]):.1f}" r="3"/>')
        parts.append(f'<path class="line" d="{_path([(x(a), y(b)) for a, b in points])}"/></g>')
    return svg(WIDTH, HEIGHT, title, parts)


def interval_chart(rows: Sequence[Interval], title: str, x_label: str, zero: bool = False) -> str:
    """Return one row per method: mean, whisker for the interval, a small mark per seed.

    With `zero` the values are differences and a line marks zero.
    """
    if not rows:
        return empty(title)
    values = [v for r in rows for v in (r.mean, r.low, r.high, *r.points) if v is not None] + ([0.0] if zero else [])
    pad = 0.05 * (max(values) - min(values)) or 0.05
    low, high = min(values) - pad, max(values) + pad
    if not zero:
        low, high = max(0.0, low), min(1.0, high)
    left, height = _label_width(rows), TOP + ROW * len(rows) + BOTTOM
    x = Scale(low, max(high, low + 1e-9), left, WIDTH - RIGHT)
    parts = [_x_axis(x, TOP, height - BOTTOM, x_label, points if zero else percent)]
    if zero:
        parts.append(f'<path class="zero" d="M{x(0):.1f} {TOP}V{height - BOTTOM}"/>')
    for index, row in enumerate(rows):
        middle = TOP + ROW * (index + 0.5)
        parts.append(_row_label(row.label, left, middle))
        note = f"{row.label}: {100 * row.mean:.2f}"
        if row.low is not None and row.high is not None:
            note += f", 95 % interval {100 * row.low:.2f} to {100 * row.high:.2f}"
        parts.append(f'<g class="s {row.style}"><title>{escape(note)}</title>')
        if row.low is not None and row.high is not None:
            a, b = x(max(row.low, x.low)), x(min(row.high, x.high))
            ends = f"M{a:.1f} {middle - 4}v8M{b:.1f} {middle - 4}v8"
            parts.append(f'<path class="whisker" d="M{a:.1f} {middle}H{b:.1f}{ends}"/>')
        parts += [f'<path class="seed" d="M{x(v):.1f} {middle + 5}v5"/>' for v in row.points]
        parts.append(f'<circle class="dot" cx="{x(row.mean):.1f}" cy="{middle}" r="4.5"/></g>')
    return svg(WIDTH, height, title, parts)


def strip_chart(rows: Sequence[Series], title: str, x_label: str) -> str:
    """Return one row per method with a dot per client (``y`` values), the quartile box and the median."""
    if not any(v is not None for row in rows for v in row.y):
        return empty(title)
    row_height = 34
    left, height = _label_width(rows), TOP + row_height * len(rows) + BOTTOM
    values = [v for row in rows for v in row.y if v is not None]
    x = Scale(max(0.0, min(values) - 0.02), min(1.0, max(values) + 0.02), left, STRIP_WIDTH - RIGHT)
    parts = [_x_axis(x, TOP, height - BOTTOM, x_label, percent)]
    for index, row in enumerate(rows):
        middle = TOP + row_height * (index + 0.5)
        parts += [_row_label(row.label, left, middle), f'<g class="s {row.style}"><title>{escape(row.label)}</title>']
        found = sorted(v for v in row.y if v is not None)
        if found:
            a, b, c = (x(_quantile(found, q)) for q in (0.25, 0.5, 0.75))
            parts.append(f'<rect class="box" x="{a:.1f}" y="{middle - 11}" width="{c - a:.1f}" height="22" rx="3"/>')
            parts.append(f'<path class="median" d="M{b:.1f} {middle - 11}v22"/>')
        notes = row.notes or [""] * len(row.y)
        for number, (value, note) in enumerate(zip(row.y, notes, strict=True)):
            if value is not None:
                # Spread by the golden ratio: even, and the same on every run.
                offset = ((number * 0.618034) % 1 - 0.5) * 16
                parts.append(_dot(x(value), middle + offset, 2.6, note))
        parts.append("</g>")
    return svg(STRIP_WIDTH, height, title, parts)


def scatter_chart(series: Sequence[Series], title: str, x_label: str, y_label: str, log: bool = False) -> str:
    """Return a dot per client; with `log` the horizontal axis goes by decades (values must be positive)."""
    pairs = [(a, b) for s in series for a, b in zip(s.x, s.y, strict=True) if a is not None and b is not None]
    if not pairs:
        return empty(title)
    xs, ys = [a for a, _ in pairs], [b for _, b in pairs]
    low, high = (min(xs) / 1.15, max(xs) * 1.15) if log else (min(xs) - 0.3, max(xs) + 0.3)
    x = Scale(low, high, LEFT, WIDTH - RIGHT, log)
    pad = 0.05 * (max(ys) - min(ys)) or 0.05
    y = Scale(max(0.0, min(ys) - pad), min(1.0, max(ys) + pad), HEIGHT - BOTTOM, TOP)
    parts = [_axes(x, y, x_label, y_label, short, percent)]
    for one in series:
        parts.append(f'<g class="s {one.style}"><title>{escape(one.label)}</title>')
        for a, b, note in zip(one.x, one.y, one.notes or [""] * len(one.x), strict=True):
            if a is not None and b is not None:
                parts.append(_dot(x(a), y(b), 4.2, note))
        parts.append("</g>")
    return svg(WIDTH, HEIGHT, title, parts)


def empty(title: str) -> str:
    """Return a box that says there is nothing to draw."""
    return svg(WIDTH, 60, title, [f'<text class="t mid" x="{WIDTH / 2}" y="34">no data</text>'])


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return the picture: `title` is what a screen reader says, `parts` the elements in drawing order."""
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
    return head + "".join(parts) + "</svg>"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points) if points else ""


def _dot(x: float, y: float, radius: float, note: str) -> str:
    inside = f"<title>{escape(note)}</title>" if note else ""
    return f'<circle class="dot soft" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{inside}</circle>'


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _label_width(rows: Sequence[Series] | Sequence[Interval]) -> float:
    return min(170, 16 + 6.8 * max(len(row.label) for row in rows))


def _row_label(label: str, left: float, middle: float) -> str:
    text = label if len(label) <= 23 else label[:22] + "…"
    return f'<text class="t end strong" x="{left - 8}" y="{middle + 4}">{escape(text)}</text>'


def _axes(x: Scale, y: Scale, x_label: str, y_label: str, x_text: Text, y_text: Text) -> str:
    parts = [_x_axis(x, y.end, y.start, x_label, x_text, grid=False)]
    for value in y.ticks():
        place = y(value)
        parts.append(f'<path class="grid" d="M{x.start} {place:.1f}H{x.end}"/>')
        parts.append(f'<text class="t end" x="{x.start - 6}" y="{place + 4:.1f}">{y_text(value)}</text>')
    parts.append(f'<text class="t sr">{escape(y_label)}</text>')
    return "".join(parts)


def _x_axis(x: Scale, top: float, bottom: float, label: str, text: Text, grid: bool = True) -> str:
    parts = [f'<path class="axis" d="M{x.start} {bottom}H{x.end}"/>']
    for value in x.ticks():
        place = x(value)
        parts.append(f'<path class="grid" d="M{place:.1f} {top if grid else bottom}V{bottom + (0 if grid else 4)}"/>')
        parts.append(f'<text class="t mid" x="{place:.1f}" y="{bottom + 17}">{text(value)}</text>')
    parts.append(f'<text class="t mid" x="{(x.start + x.end) / 2:.1f}" y="{bottom + 35}">{escape(label)}</text>')
    return "".join(parts)
