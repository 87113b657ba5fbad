// Line charts as SVG: a few lines over the last minutes. No library: there is nothing else to draw.

import { h, svg } from "./dom.js";
import { t } from "./i18n.js";

const HEIGHT = 170;
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 8, 8, 22];

/** The smallest of 1, 2, 5 times a power of ten that is at least `value`. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value * 0.999);
}

/** Points of a line as SVG's path; a missing value interrupts it. */
export function path(points, x, y) {
  let pen = "M";
  return points
    .map(([time, value]) => {
      if (value === null || value === undefined) {
        pen = "M";
        return "";
      }
      const part = `${pen}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
      const dot = pen === "M" ? "h-3h3" : ""; // one point alone is a short dash
      pen = "L";
      return part + dot;
    })
    .join("");
}

function short(value) {
  return value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/** A chart of `minutes`. `lines`: {name, class, of(point)}; `update(points, now)` redraws it. */
export function chart(title, unit, minutes, lines) {
  const picture = svg("svg", { role: "img", height: HEIGHT });
  const legend = h("ul", { class: "legend" });
  const element = h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, title, " ", h("small", {}, unit)),
    picture,
    legend,
  );
  let last = [[], 0];

  function update(points, now) {
    last = [points, now];
    const width = Math.max(200, element.clientWidth);
    const rows = lines.map((line) => points.map((point) => [point.time, line.of(point)]));
    const most = ceiling(Math.max(0, ...rows.flat().map(([, value]) => value || 0)));
    const x = (time) => LEFT + (width - LEFT - RIGHT) * (1 - (now - time) / (minutes * 60));
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
    const grid = [0, 0.5, 1].map((part) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(part * most), y2: y(part * most) }),
      svg("text", { x: LEFT - 6, y: y(part * most) + 4, "text-anchor": "end" }, short(part * most)),
    ]);
    const times = [minutes, (minutes * 2) / 3, minutes / 3, 0].map((ago) =>
      svg(
        "text",
        {
          x: x(now - ago * 60),
          y: HEIGHT - 5,
          "text-anchor": ago === minutes ? "start" : ago ? "middle" : "end",
        },
        ago ? t("chart.ago", { ago }) : t("chart.now"),
      ),
    );
    const drawn = rows.map((row, i) => svg("path", { class: `line ${lines[i].class}`, d: path(row, x, y) }));
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const latest = lines.map((line, i) => `${line.name}: ${described(rows[i])}`);
    picture.setAttribute("aria-label", `${title}. ${latest.join("; ")}`);
    picture.replaceChildren(...grid.flat(), ...times, ...drawn);
    legend.replaceChildren(
      ...lines.map((line, i) => h("li", { class: line.class }, line.name, " ", h("b", {}, described(rows[i])))),
    );
  }

  /** The newest value that there is. */
  function described(row) {
    const found = row.findLast(([, value]) => value !== null && value !== undefined);
    return found ? `${short(found[1])} ${unit}` : "–";
  }

  new ResizeObserver(() => update(...last)).observe(element);
  return { element, update };
}
