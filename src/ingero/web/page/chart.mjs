// A line chart that follows values as they come.
import { useEffect, useRef } from "./hooks.mjs";
import uPlot from "./uplot.mjs";
import { html } from "./parts.mjs";
import { colours } from "./draw.mjs";

const rgb = (value) => `rgb(${value.join(" ")})`;

export function Chart({ data, series, label, height = 170 }) {
  const box = useRef(), plot = useRef();
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      const colour = colours();
      const axis = { stroke: rgb(colour.dim), grid: { stroke: rgb(colour.empty), width: 1 }, ticks: { stroke: rgb(colour.empty), width: 1 } };
      plot.current = new uPlot({
        width: box.current.clientWidth - 16, height, cursor: { show: false }, legend: { live: false },
        scales: { y: { range: (u, low, high) => [Math.max(0, Math.min(low ?? 0, 0.5)), Math.max(1, high ?? 1)] } },
        axes: [{ ...axis, space: 90, incrs: [1, 5, 10, 30, 60, 120, 300], values: (u, times) => times.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB")) }, axis],
        series: [{}, ...series.map(([name, tone, dash]) => ({ label: name, stroke: rgb(colour[tone]), width: 2, dash, points: { show: false } }))],
      }, data, box.current);
    };
    make();
    const observer = new ResizeObserver(() => box.current && plot.current.setSize({ width: box.current.clientWidth - 16, height }));
    observer.observe(box.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return () => { observer.disconnect(); dark.removeEventListener("change", make); plot.current.destroy(); };
  }, []);
  useEffect(() => { plot.current?.setData(data); });
  return html`<div class="chart" ref=${box} role="img" aria-label=${label}></div>`;
}
