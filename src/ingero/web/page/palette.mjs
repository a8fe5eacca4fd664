// Colours of the style sheet as numbers, whatever the theme makes of them.
const NAMES = ["ink", "page", "card", "ok", "bad", "warm", "empty", "dim", "accent"];
let palette = null;
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
  matchMedia(query).addEventListener("change", () => { palette = null; });
}

export function colours() {
  if (palette) return palette;
  const probe = document.createElement("span");
  probe.className = "probe";
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  };
  palette = Object.fromEntries(NAMES.map((name) => [name, read(name)]));
  probe.remove();
  return palette;
}

// A colour as a pixel of a canvas, between two colours, and as CSS.
export const pack = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
export const mix = (a, b, share) =>
  a.map((value, i) => Math.round(value * share + b[i] * (1 - share)));
export const css = (value) => `rgb(${value.join(" ")})`;
