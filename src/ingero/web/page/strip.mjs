// Ranks × steps: how much slower than the median of its step each rank was.
import { useEffect, useRef, useState } from "./hooks.mjs";
import { html } from "./parts.mjs";
import { MISSING, number } from "./format.mjs";
import { colours, mix, pack } from "./palette.mjs";

const TALLEST = 420, SHADES = 40, FULL = 20;  // percent above the median that have the full colour
const LATELY = 30;  // steps

function paintSteps(canvas, columns, rows, wide, high) {
  const colour = colours(), context = canvas.getContext("2d", { alpha: false });
  const width = Math.max(1, columns.length * wide), height = rows * high;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const shades = Array.from({ length: SHADES + 1 }, (_, i) =>
    pack(mix(colour.bad, colour.card, i / SHADES)));
  const shade = (value) => value == null ? pack(colour.empty)
    : shades[Math.max(0, Math.min(SHADES, Math.round((SHADES / FULL) * value)))];
  pixels.fill(pack(colour.card));
  columns.forEach((values, x) => values.forEach((value, y) => {
    const below = (y + 1) * high - (high > 4 ? 1 : 0), tone = shade(value);
    for (let line = y * high; line < below; line++) {
      pixels.fill(tone, line * width + x * wide, line * width + (x + 1) * wide);
    }
  }));
  context.putImageData(image, 0, 0);
}

// The rank that was slowest in the last steps, and by how many percent; none where nobody was.
function slowest(columns, ranks) {
  const mean = (y) => {
    const last = columns.slice(-LATELY).map((values) => values[y]);
    const known = last.filter((value) => value != null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : -Infinity;
  };
  const [worst] = ranks.map((rank, y) => [rank, mean(y)]).sort((a, b) => b[1] - a[1]);
  return worst?.[1] >= 1 ? worst : null;
}

export function StepStrip({ steps }) {
  const canvas = useRef(), [picked, pick] = useState(null), { ranks } = steps;
  const room = Math.min(1180, innerWidth - 40);
  const numbers = [...steps.columns.keys()].slice(-Math.floor(room / 2));  // the newest that fit
  const columns = numbers.map((step) => steps.columns.get(step));
  const high = Math.max(3, Math.min(14, Math.floor(TALLEST / ranks.length)));
  const wide = Math.max(2, Math.min(6, Math.floor(room / Math.max(1, numbers.length))));
  useEffect(() => paintSteps(canvas.current, columns, ranks.length, wide, high));
  const point = (event) => {
    const place = canvas.current.getBoundingClientRect();
    const x = Math.floor((event.clientX - place.left) / wide);
    const y = Math.floor((event.clientY - place.top) / high);
    pick(numbers[x] == null || ranks[y] == null ? null : [numbers[x], ranks[y], columns[x][y]]);
  };
  const worst = slowest(columns, ranks);
  const told = worst && `Slowest in the last ${LATELY} steps: rank ${worst[0]}, ` +
    `${number(worst[1], 0)}% above the median.`;
  const label = `Own time of ${ranks.length} ranks in the last ${numbers.length} steps, ` +
    `compared with the median of each step. ${told ?? ""}`;
  return html`<div class="wide"><canvas class="map" ref=${canvas} role="img" aria-label=${label}
      onMouseMove=${point} onMouseLeave=${() => pick(null)}></canvas></div>
    <p class="pick small">${picked ? describe(picked) : told ?? "Nobody stands out."}</p>
    <p class="small dim">
      Steps ${numbers[0] ?? MISSING} to ${numbers.at(-1) ?? MISSING} from left to right, ranks${" "}
      ${ranks[0]} to ${ranks.at(-1)} from top to bottom. The stronger the colour, the slower than
      ${" the median of the step"}, up to ${FULL}%; grey is not known.
      ${steps.of > ranks.length && ` Only ${ranks.length} of ${steps.of} ranks are drawn.`}
    </p>`;
}

function describe([step, rank, value]) {
  if (value == null) return `Step ${step}, rank ${rank}: not known.`;
  const side = value < 0 ? "below" : "above";
  return `Step ${step}, rank ${rank}: ${number(Math.abs(value), 1)}% ${side} the median.`;
}
