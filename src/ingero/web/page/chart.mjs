// A line chart that follows values as they come.
import { useEffect, useRef } from "./hooks.mjs";
import uPlot from "./uplot.mjs";
import { html } from "./parts.mjs";
import { colours, css } from "./palette.mjs";

const HEIGHT = 170, PADDING = 16, TICKS_S = [1, 5, 10, 30, 60, 120, 300];
const THEMES = ["(prefers-color-scheme: dark)", "(forced-colors: active)"];
const time = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

function settings(series, width) {
  const colour = colours(), thin = { stroke: css(colour.empty), width: 1 };
  const axis = { stroke: css(colour.dim), grid: thin, ticks: thin };
  const times = { space: 90, incrs: TICKS_S, values: (_, all) => all.map(time) };
  const range = (_, low, high) => [Math.max(0, Math.min(low ?? 0, 0.5)), Math.max(1, high ?? 1)];
  const lines = series.map(([label, tone, dash]) =>
    ({ label, stroke: css(colour[tone]), width: 2, dash, points: { show: false } }));
  return {
    width, height: HEIGHT, cursor: { show: false }, legend: { live: false },
    scales: { y: { range } }, axes: [{ ...axis, ...times }, axis], series: [{}, ...lines],
  };
}

// Rows are [time, value of each series …].
export function Chart({ rows, series, label }) {
  const box = useRef(), plot = useRef();
  const data = [0, ...series.map((_, i) => i + 1)].map((i) => rows.map((row) => row[i]));
  useEffect(() => {
    const width = () => box.current.clientWidth - PADDING;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(settings(series, width()), data, box.current);
    };
    const resize = () => box.current && plot.current.setSize({ width: width(), height: HEIGHT });
    const observer = new ResizeObserver(resize), themes = THEMES.map((query) => matchMedia(query));
    make();
    observer.observe(box.current);
    for (const theme of themes) theme.addEventListener("change", make);
    return () => {
      observer.disconnect();
      for (const theme of themes) theme.removeEventListener("change", make);
      plot.current.destroy();
    };
  }, []);
  useEffect(() => { plot.current?.setData(data); });
  return html`<div class="chart" ref=${box} role="img" aria-label=${label}></div>`;
}
