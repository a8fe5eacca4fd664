// Canvas pictures: the map of all nodes, and the ranks of a job by step.
import { useEffect, useRef, useState } from "./hooks.mjs";
import { html, link } from "./parts.mjs";
import { NODE } from "./live.mjs";

const pack = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
const mix = (a, b, share) => a.map((value, i) => Math.round(value * share + b[i] * (1 - share)));
let palette = null;
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
  matchMedia(query).addEventListener("change", () => { palette = null; });
}

// Colours of the style sheet as numbers, whatever the theme makes of them.
export function colours() {
  if (palette) return palette;
  const probe = document.createElement("span");
  probe.className = "probe";
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  };
  const names = ["ink", "page", "card", "ok", "bad", "warm", "empty", "dim", "accent"];
  palette = Object.fromEntries(names.map((name) => [name, read(name)]));
  probe.remove();
  return palette;
}

export const paints = [];  // milliseconds of the last paints of the map

function cellSize(count, width) {
  for (const size of [22, 16, 12, 8, 6]) if (Math.ceil(count / Math.floor(width / size)) * size <= 640) return size;
  return 4;
}

export function paintMap(canvas, rows, columns, cell, suspects, picked) {
  const began = performance.now(), colour = colours();
  const width = columns * cell, height = Math.ceil(rows.length / columns) * cell;
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const context = canvas.getContext("2d", { alpha: false });
  const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
  const back = pack(colour.page), bad = pack(colour.bad), mark = pack(colour.page), warm = pack(colour.warm);
  const dim = pack(colour.dim), idle = pack(colour.empty), accent = pack(colour.accent);
  const shades = Array.from({ length: 33 }, (_, i) => pack(mix(colour.ok, colour.page, 0.35 + 0.65 * (i / 32))));
  pixels.fill(back);
  const size = cell - (cell > 5 ? 2 : 1), middle = size >> 1;
  const box = (x, y, w, h, value) => { for (let line = y; line < y + h; line++) { const at = line * width + x; pixels.fill(value, at, at + w); } };
  for (let i = 0; i < rows.length; i++) {
    const node = rows[i], x = (i % columns) * cell, y = Math.floor(i / columns) * cell, state = node[NODE.state];
    if (node[NODE.slow]) {
      box(x, y, size, size, bad);
      box(x + middle - (size > 6 ? 1 : 0), y, size > 6 ? 2 : 1, size, mark);  // a mark, not colour alone
    } else if (suspects.has(node[NODE.id])) {
      box(x, y, size, size, warm);
      box(x, y + middle, size, 1, mark);
    } else if (state === "silent") {
      box(x, y, size, size, dim);
      box(x + 1, y + 1, size - 2, size - 2, back);
    } else if (state === "active" && node[NODE.score] != null) {
      box(x, y, size, size, shades[Math.round(32 * Math.max(0, Math.min(1, node[NODE.score])))]);
    } else box(x, y, size, size, idle);
    if (i === picked) { box(x, y, size, 2, accent); box(x, y + size - 2, size, 2, accent); box(x, y, 2, size, accent); box(x + size - 2, y, 2, size, accent); }
  }
  context.putImageData(image, 0, 0);
  paints.push(performance.now() - began);
  if (paints.length > 300) paints.shift();
}

// The node map. `slow` holds nodes with an open verdict: agents may not have noticed themselves.
export function NodeMap({ view, slow, suspects, go }) {
  const canvas = useRef(), box = useRef(), [width, setWidth] = useState(0), [picked, pick] = useState(-1);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const rows = view.ids.map((id) => { const node = view.nodes.get(id); return slow.has(id) && !node[NODE.slow] ? node.with(NODE.slow, true) : node; });
  const cell = width ? cellSize(rows.length, width) : 8, columns = Math.max(1, Math.floor(width / cell));
  useEffect(() => { if (width) paintMap(canvas.current, rows, columns, cell, suspects, picked); });
  const at = (event) => {
    const place = canvas.current.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left) / cell), line = Math.floor((event.clientY - place.top) / cell);
    const index = line * columns + column;
    return column < columns && index < rows.length ? index : -1;
  };
  const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  const key = (event) => {
    if (event.key === "Enter" && picked >= 0) return go(link("node", rows[picked][NODE.id], view.cluster_id));
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const next = picked < 0 ? 0 : picked + move;
    if (next >= 0 && next < rows.length) pick(next);
  };
  const node = rows[picked];
  const counts = view.summary.nodes_by_state;
  const label = `Map of ${rows.length} nodes. ` + Object.entries(counts).filter(([, n]) => n).map(([name, n]) => `${n} ${name}`).join(", ") + ". Arrow keys move, Enter opens a node.";
  return html`<div ref=${box}>
      <canvas class="map" ref=${canvas} role="application" tabindex="0" aria-label=${label}
        onMouseMove=${(e) => pick(at(e))} onMouseLeave=${() => pick(-1)} onKeyDown=${key}
        onClick=${(e) => { const i = at(e); if (i >= 0) go(link("node", rows[i][NODE.id], view.cluster_id)); }}></canvas>
    </div>
    <p class="pick small" aria-live="polite">${node ? html`<strong>${node[NODE.id]}</strong>: ${node[NODE.state] || "no score yet"}${node[NODE.score] == null ? "" : ", score " + node[NODE.score].toFixed(3)}${node[NODE.job] ? ", job " + node[NODE.job] : ""}` : html`<span class="dim">${rows.length} nodes; point at one, or use the arrow keys</span>`}</p>
    <div class="legend"><span><i class="sw-active"></i>active, the stronger the healthier</span><span><i class="sw-slow"></i>slow (with a bar)</span><span><i class="sw-suspect"></i>suspected</span><span><i class="sw-silent"></i>silent</span><span><i class="sw-idle"></i>idle, calibrating or no score</span></div>`;
}

// Ranks × steps: how much slower than the median of its step each rank was, in percent.
export function StepStrip({ steps, names }) {
  const canvas = useRef();
  const rows = steps.ranks.length, room = Math.min(1180, innerWidth - 40);
  const numbers = [...steps.columns.keys()].slice(-Math.floor(room / 2));  // the newest where a window is narrow
  const high = Math.max(3, Math.min(14, Math.floor(420 / rows))), wide = Math.max(2, Math.min(6, Math.floor(room / Math.max(1, numbers.length))));
  useEffect(() => {
    const colour = colours(), context = canvas.current.getContext("2d", { alpha: false });
    const width = Math.max(1, numbers.length * wide), height = rows * high;
    if (canvas.current.width !== width || canvas.current.height !== height) Object.assign(canvas.current, { width, height });
    const image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    pixels.fill(pack(colour.card));
    const unknown = pack(colour.empty), shades = Array.from({ length: 41 }, (_, i) => pack(mix(colour.bad, colour.card, i / 40)));
    numbers.forEach((step, x) => steps.columns.get(step).forEach((value, y) => {
      const shade = value == null ? unknown : shades[Math.max(0, Math.min(40, Math.round(2 * value)))];
      for (let line = y * high; line < (y + 1) * high - (high > 4 ? 1 : 0); line++) { const at = line * width + x * wide; pixels.fill(shade, at, at + wide); }
    }));
    context.putImageData(image, 0, 0);
  });
  const worst = steps.ranks.map((rank, y) => {
    const known = numbers.slice(-30).map((step) => steps.columns.get(step)[y]).filter((value) => value != null);
    return [names[y], known.length ? known.reduce((a, b) => a + b, 0) / known.length : -Infinity];
  }).sort((a, b) => b[1] - a[1])[0];
  const label = `Own time of ${rows} ranks in the last ${numbers.length} steps, compared with the median of each step.` + (worst && worst[1] > 0 ? ` Slowest in the last 30 steps: ${worst[0]}, ${worst[1].toFixed(0)} percent above the median.` : "");
  return html`<div class="wide"><canvas class="map" ref=${canvas} role="img" aria-label=${label}></canvas></div>
    <p class="small dim">Steps ${numbers[0] ?? "–"} to ${numbers.at(-1) ?? "–"}, one row per rank from rank ${steps.ranks[0]} down to ${steps.ranks.at(-1)}; the redder, the slower than the median of the step (full at 20%); grey is not known.${steps.of > rows ? ` The first ${rows} of ${steps.of} ranks are drawn.` : ""} ${worst && worst[1] >= 1 ? `Slowest in the last 30 steps: ${worst[0]}, ${worst[1].toFixed(0)}% above the median.` : ""}</p>`;
}
