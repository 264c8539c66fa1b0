// Small drawings without a library: a number of each run, the links of a golden record, the versions of a key.

import { el, plain, svg } from "./page.js";

const WIDTH = 320;
const HEIGHT = 56;

/**
 * Draw a number of each run, oldest first, as bars or as a line; null leaves a gap.
 * A point is a link that calls `open` with its index, and has a title for the pointer and for screen readers.
 */
export function plot(name, points, open, isLine = false) {
  const known = points.filter(({ value }) => Number.isFinite(value));
  if (known.length < 2) return null;
  const most = Math.max(...known.map(({ value }) => value), 0);
  const least = isLine ? Math.min(...known.map(({ value }) => value)) : 0;
  const step = WIDTH / Math.max(points.length, 12);
  const heightOf = (value) => 4 + ((value - least) / (most - least || 1)) * (HEIGHT - 10);
  const marks = points.map(({ value, title }, index) => {
    if (!Number.isFinite(value)) return null;
    const x = index * step;
    const mark = isLine
      ? svg("circle", { cx: x + step / 2, cy: HEIGHT - heightOf(value), r: 3 })
      : svg("rect", { x: x + step * 0.1, y: HEIGHT - heightOf(value), width: step * 0.8, height: heightOf(value) });
    const anchor = svg("a", { href: "#runs", tabindex: 0, "aria-label": title }, svg("title", {}, title), mark);
    anchor.addEventListener("click", (event) => { event.preventDefault(); open(index); });
    return anchor;
  });
  const path = known.length && isLine
    ? svg("polyline", { points: points.map(({ value }, index) => [value, index]).filter(([value]) => Number.isFinite(value))
      .map(([value, index]) => `${index * step + step / 2},${HEIGHT - heightOf(value)}`).join(" ") })
    : null;
  return el("figure", { class: "plot" },
    el("figcaption", {}, name, " ", el("span", { class: "quiet" }, `up to ${plain(most)}`)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": name }, path, marks));
}

const BOX = 250;
const ROW = 54;

/** Draw the members of a golden record as a tree: each member below the one that a rule links it with. */
export function drawMembers(members, links) {
  const nameOf = ({ dataset, id }) => `${dataset}/${id}`;
  const from = new Map(links.map((link) => [link.reached, link]));
  const depths = new Map();
  const depthOf = (name) => {
    if (!depths.has(name)) {
      depths.set(name, 0);
      depths.set(name, from.has(name) ? depthOf(from.get(name).known) + 1 : 0);
    }
    return depths.get(name);
  };
  const children = (parent) => members.map(nameOf).filter((name) => from.get(name)?.known === parent);
  const order = [];
  const walk = (name) => { if (!order.includes(name)) { order.push(name); children(name).forEach(walk); } };
  members.map(nameOf).filter((name) => !from.has(name)).forEach(walk);
  members.map(nameOf).forEach(walk);
  const at = new Map(order.map((name, index) => [name, { x: 8 + depthOf(name) * 40, y: 8 + index * ROW }]));
  const width = 16 + Math.max(...[...at.values()].map(({ x }) => x), 0) + 2 * BOX;
  const parts = order.map((name) => {
    const { x, y } = at.get(name);
    const link = from.get(name);
    const parent = link && at.get(link.known);
    return svg("g", {},
      parent ? svg("path", { d: `M ${parent.x + 12} ${parent.y + 28} V ${y + 14} H ${x}` }) : null,
      svg("rect", { x, y, width: BOX, height: 28, rx: 6 }),
      svg("text", { x: x + 10, y: y + 19 }, name.length > 32 ? `${name.slice(0, 31)}…` : name, svg("title", {}, name)),
      link ? svg("text", { x: x + BOX + 10, y: y + 19, class: "quiet" }, `${link.rule}: ${link.key}`) : null);
  });
  const height = order.length * ROW;
  const label = `${plain(members.length)} members and ${plain(links.length)} links`;
  return svg("svg", { class: "members", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, parts);
}

/** Draw the versions of a key on a time axis: a bar from the start to the end of each; null without times. */
export function drawVersions(versions) {
  const spans = versions.filter(({ stored }) => stored).map(({ valid_from, valid_to, active, values }) => {
    const ends = [new Date(valid_from).getTime(), active ? Number.POSITIVE_INFINITY : new Date(valid_to).getTime()];
    const title = `${valid_from} to ${active ? "now" : valid_to}: ${Object.entries(values).map(([name, value]) => `${name} = ${plain(value)}`).join(", ")}`;
    return { from: ends[0], to: ends[1], title };
  }).filter(({ from, to }) => Number.isFinite(from) && !Number.isNaN(to));
  if (!spans.length) return null;
  const first = Math.min(...spans.map(({ from }) => from));
  const known = spans.flatMap(({ from, to }) => [from, to]).filter(Number.isFinite);
  // A version that is valid now ends after all others.
  const last = Math.max(...known) + (Math.max(...known) - first || 1) * 0.2;
  const scale = (at) => 4 + ((Math.min(at, last) - first) / (last - first)) * (2 * WIDTH - 8);
  const bars = spans.map(({ from, to, title }, index) => svg("rect", {
    x: scale(from), y: 6 + index * 16, width: Math.max(scale(to) - scale(from), 2), height: 12, rx: 3,
  }, svg("title", {}, title)));
  const height = 12 + spans.length * 16;
  return svg("svg", { class: "versions", viewBox: `0 0 ${2 * WIDTH} ${height}`, width: 2 * WIDTH, height, role: "img", "aria-label": `${plain(spans.length)} versions on a time axis` }, bars);
}
