// The map of all nodes of a cluster, on a canvas: one cell per node, up to 10,000 and more.
import { useEffect, useRef, useState } from "./hooks.mjs";
import { html } from "./parts.mjs";
import { link, number } from "./format.mjs";
import { NODE } from "./live.mjs";
import { colours, mix, pack } from "./palette.mjs";

const SIZES = [22, 16, 12, 8, 6], SMALLEST = 4, TALLEST = 640, SHADES = 32;
const KEPT_PAINTS = 300;
export const paints = [];  // milliseconds of the last paints

function cellSize(size, width) {
  const fits = (cell) => Math.ceil(size / Math.floor(width / cell)) * cell <= TALLEST;
  return SIZES.find(fits) ?? SMALLEST;
}

function tones() {
  const c = colours(), shade = (i) => pack(mix(c.ok, c.page, 0.35 + 0.65 * (i / SHADES)));
  const packed = Object.fromEntries(Object.entries(c).map(([name, value]) => [name, pack(value)]));
  return { ...packed, shades: Array.from({ length: SHADES + 1 }, (_, i) => shade(i)) };
}

// The marks of a cell tell states apart without colour, too.
function paintCell(box, tone, node, isSuspect, x, y, size) {
  const state = node[NODE.state], middle = size >> 1, isLarge = size > 6;
  if (node[NODE.slow]) {
    box(x, y, size, size, tone.bad);
    box(x + middle - (isLarge ? 1 : 0), y, isLarge ? 2 : 1, size, tone.page);
  } else if (isSuspect) {
    box(x, y, size, size, tone.warm);
    box(x, y + middle, size, 1, tone.page);
  } else if (state === "silent") {
    box(x, y, size, size, tone.dim);
    box(x + 1, y + 1, size - 2, size - 2, tone.page);
  } else if (state === "active" && node[NODE.score] != null) {
    const score = Math.max(0, Math.min(1, node[NODE.score]));
    box(x, y, size, size, tone.shades[Math.round(SHADES * score)]);
  } else box(x, y, size, size, tone.empty);
}

function frameCell(box, colour, x, y, size) {
  box(x, y, size, 2, colour);
  box(x, y + size - 2, size, 2, colour);
  box(x, y, 2, size, colour);
  box(x + size - 2, y, 2, size, colour);
}

function paintMap(canvas, rows, columns, cell, suspects, picked) {
  const began = performance.now(), tone = tones(), size = cell - (cell > 5 ? 2 : 1);
  const width = columns * cell, height = Math.ceil(rows.length / columns) * cell;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { alpha: false });
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const box = (x, y, w, h, value) => {
    for (let at = y * width + x; at < (y + h) * width; at += width) pixels.fill(value, at, at + w);
  };
  pixels.fill(tone.page);
  for (let i = 0; i < rows.length; i++) {
    const x = (i % columns) * cell, y = Math.floor(i / columns) * cell;
    paintCell(box, tone, rows[i], suspects.has(rows[i][NODE.id]), x, y, size);
    if (i === picked) frameCell(box, tone.accent, x, y, size);
  }
  context.putImageData(image, 0, 0);
  paints.push(performance.now() - began);
  if (paints.length > KEPT_PAINTS) paints.shift();
}

function useWidth(box) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

export function NodeMap({ view, slow, suspects, go }) {
  const canvas = useRef(), box = useRef(), width = useWidth(box), [picked, pick] = useState(-1);
  const rows = view.ids.map((id) => {
    const node = view.nodes.get(id);
    return slow.has(id) && !node[NODE.slow] ? node.with(NODE.slow, true) : node;
  });
  const cell = width ? cellSize(rows.length, width) : 8;
  const columns = Math.max(1, Math.floor(width / cell));
  useEffect(() => { if (width) paintMap(canvas.current, rows, columns, cell, suspects, picked); });
  const open = (index) => rows[index] && go(link("node", rows[index][NODE.id], view.cluster_id));
  const under = (event) => {
    const place = canvas.current.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left) / cell);
    const index = Math.floor((event.clientY - place.top) / cell) * columns + column;
    return column < columns && index < rows.length ? index : -1;
  };
  const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  const key = (event) => {
    if (event.key === "Enter") return open(picked);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const next = picked < 0 ? 0 : picked + moves[event.key];
    if (next >= 0 && next < rows.length) pick(next);
  };
  return html`<div ref=${box}>
      <canvas class="map" ref=${canvas} role="application" tabindex="0" aria-label=${labelOf(view)}
        onMouseMove=${(event) => pick(under(event))} onMouseLeave=${() => pick(-1)}
        onKeyDown=${key} onClick=${(event) => open(under(event))}></canvas>
    </div>
    <p class="pick small" aria-live="polite">
      <${Picked} node=${rows[picked]} size=${rows.length} />
    </p>
    <${Legend} />`;
}

function labelOf(view) {
  const states = Object.entries(view.summary.nodes_by_state).filter(([, size]) => size);
  const counts = states.map(([name, size]) => `${size} ${name}`).join(", ");
  return `Map of ${view.ids.length} nodes. ${counts}. Arrow keys move, Enter opens a node.`;
}

function Picked({ node, size }) {
  const help = `${size} nodes; point at one, or use the arrow keys`;
  if (!node) return html`<span class="dim">${help}</span>`;
  const parts = [
    node[NODE.slow] ? "slow" : node[NODE.state] || "no score yet",
    node[NODE.score] != null && `score ${number(node[NODE.score], 3)}`,
    node[NODE.job] && `job ${node[NODE.job]}`,
  ];
  return html`<strong>${node[NODE.id]}</strong>: ${parts.filter(Boolean).join(", ")}`;
}

const LEGEND = [
  ["active", "active, the stronger the healthier"], ["slow", "slow (with a bar)"],
  ["suspect", "suspected"], ["silent", "silent"], ["idle", "idle, calibrating or no score"],
];
const Legend = () => html`<div class="legend">${LEGEND.map(([name, text]) =>
  html`<span><i class=${"sw-" + name}></i>${text}</span>`)}</div>`;
