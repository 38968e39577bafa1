"""Bars of what each codec makes of a training on two nodes: on the terminal, and as an SVG picture."""
from xml.sax.saxutils import escape

INK, PALE, GRID = "#24292f", "#6e7781", "#e6e8eb"
COLOURS = ["#0969da", "#f0a13a"]  # of the series of a panel
WIDTH, LEFT, BAR, GAP, HEAD = 1100, 90, 18, 14, 100


def bars_text(title, values, width=50):
    """values: (name, number) in order; a line each, the longest `width` wide."""
    most = max(value for _, value in values) or 1
    lines = [title]
    for name, value in values:
        lines.append(f"  {name:5} {'#' * max(1, round(width * value / most)):{width}} {value:8.2f}")
    return "\n".join(lines)


class Picture:
    def __init__(self, title, below):
        self.parts, self.height = [], HEAD
        self.text(40, 44, title, 22, INK)
        self.text(40, 70, below, 13, PALE)

    def text(self, x, y, words, size, colour, anchor="start"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
                          f"{escape(words)}</text>")

    def panel(self, title, names, series, unit):
        """series: (what it is, a number for each name); numbers from 0, so that lengths compare."""
        y, most = self.height + 20, max(max(values) for _, values in series) or 1
        self.text(LEFT, y, title, 16, INK)
        for i, (what, _) in enumerate(series if len(series) > 1 else []):
            self.parts.append(f'<rect x="{LEFT + 400 + 200 * i}" y="{y - 12}" width="14" height="14" fill="{COLOURS[i]}"/>')
            self.text(LEFT + 420 + 200 * i, y, what, 13, INK)
        y += 14
        for n, name in enumerate(names):
            self.text(LEFT - 10, y + BAR * len(series) / 2 + 5, name, 14, INK, "end")
            for i, (_, values) in enumerate(series):
                long = (WIDTH - LEFT - 150) * values[n] / most
                self.parts.append(f'<rect x="{LEFT}" y="{y}" width="{long:.1f}" height="{BAR - 2}" fill="{COLOURS[i]}"/>')
                self.text(LEFT + long + 8, y + BAR - 5, f"{values[n]:.2f} {unit}", 12, INK)
                y += BAR
            y += GAP - 6
        self.parts.append(f'<line x1="{LEFT}" y1="{self.height + 30}" x2="{LEFT}" y2="{y}" stroke="{GRID}" stroke-width="2"/>')
        self.height = y + 20

    def write(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}" '
                       f'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n')
            file.write("\n".join(self.parts) + "\n</svg>\n")
