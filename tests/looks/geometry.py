"""What a browser is asked of a page that is open: functions of JavaScript, and axe.

Each returns what is wrong, a line each.
"""

from __future__ import annotations

from typing import Any

from tests.looks.conftest import package

TOO_WIDE = """() => {
  const wide = document.documentElement.scrollWidth;
  const found = wide > innerWidth ? [`${wide} pixels in a window of ${innerWidth}`] : [];
  for (const lines of document.querySelectorAll(".tf > table:not(.grid), main > section > p"))
    if (lines.getBoundingClientRect().right > innerWidth)
      found.push(lines.textContent.slice(0, 40));
  return found;
}"""

CUT_TEXTS = """() => {
  const found = [], seen = (e) => e.checkVisibility({visibilityProperty: true});
  for (const text of document.querySelectorAll("svg text")) {
    if (!seen(text) || text.closest(".hidden")) continue;
    const own = text.getBoundingClientRect();
    const block = text.parentElement.matches("svg svg, [data-n]")
      && text.parentElement.querySelector(":scope > rect:not([y='4'])");
    const around = (block || text.closest("section > svg, .graph > svg")).getBoundingClientRect();
    if (own.right > around.right + 1.5 || own.left < around.left - 1.5)
      found.push(`text "${text.textContent}" is cut`);
  }
  for (const e of document.querySelectorAll("main *, header *")) {
    const style = getComputedStyle(e);
    if (style.overflowX !== "hidden" || e.closest("svg") || !seen(e)) continue;
    if (e.scrollWidth > e.clientWidth + 1 && style.textOverflow !== "ellipsis")
      found.push(`"${e.textContent.slice(0, 40)}" is cut`);
  }
  return found;
}"""

DIM_TEXTS_OF_FIGURES = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const [r, g, b] = rgb(color).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = new Set(), paper = getComputedStyle(document.body).backgroundColor;
  for (const text of document.querySelectorAll("svg text")) {
    if (!text.checkVisibility()) continue;
    const block = text.parentElement.querySelector(":scope > rect");
    const fill = block && getComputedStyle(block).fill;
    const isFilled = fill && fill !== "none" && rgb(fill)[3] > 200 && block.getBBox().width > 12
      && text.parentElement.matches("svg svg, [data-n]");
    const [low, high] = [light(getComputedStyle(text).fill), light(isFilled ? fill : paper)]
      .sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) found.add(`${contrast.toFixed(1)}: "${text.textContent}"`);
  }
  return [...found];
}"""

UNEVEN_COLUMNS = """() => {
  const found = [];
  for (const tree of document.querySelectorAll(".tf")) {
    const rows = [...tree.querySelectorAll(".row")].filter((row) => row.checkVisibility());
    const edges = rows.map((row) => [...row.querySelectorAll(":scope > .num")]
      .map((cell) => Math.round(cell.getBoundingClientRect().right)));
    for (const edge of edges)
      if (edge.some((x, i) => Math.abs(x - edges[0][i]) > 2)) found.push(`${edge} and ${edges[0]}`);
  }
  return found;
}"""

CUT_NUMBERS = """() => [...document.querySelectorAll(".tf .row > .num")].filter((cell) => {
  if (!cell.checkVisibility() || !cell.textContent) return false;
  const range = document.createRange();
  range.selectNodeContents(cell);
  const own = range.getBoundingClientRect();
  const around = cell.closest(".wide").getBoundingClientRect();
  return own.right > around.right + 1 || own.left < around.left
    || own.left < cell.previousElementSibling.getBoundingClientRect().right;
}).map((cell) => cell.textContent)"""


def axe_findings(page: Any) -> list[str]:
    """What axe finds on a page that is serious or critical."""
    page.add_script_tag(path=str(package("axe-core") / "axe.min.js"))
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{rule['id']}: {node['html'][:120]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def problems(page: Any) -> list[str]:
    """All that is wrong with the geometry and the colours of a page."""
    asked = (TOO_WIDE, CUT_TEXTS, DIM_TEXTS_OF_FIGURES, UNEVEN_COLUMNS, CUT_NUMBERS)
    return [line for function in asked for line in page.evaluate(function)]
