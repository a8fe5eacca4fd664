// Verdicts as a table, and episodes along the time.
import { Badge, Columns, Copy, html, said } from "./parts.mjs";
import {
  DAY, ORDER, clock, commandOf, dollars, link, lossOf, priceOf, span, who,
} from "./format.mjs";
import { Silence } from "./silence.mjs";

const TITLES =
  ["who", "state", "class", "#job loses", "#since", "#cost", "evidence and next step", ""];

export function Verdicts({ view, verdicts }) {
  const urgency = (a, b) =>
    ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (b.loss ?? 0) - (a.loss ?? 0);
  return html`<div class="wide"><table class="stack"><${Columns} names=${TITLES} />
    <tbody>${[...verdicts].sort(urgency).map((v) =>
      html`<${Row} key=${v.episode} v=${v} view=${view} />`)}</tbody></table></div>`;
}

function Row({ v, view }) {
  const id = view.cluster_id;
  return html`<tr>
    <th scope="row"><${Who} v=${v} id=${id} /></th>
    <td><${Badge} state=${v.state} />${v.silenced && html` <${Badge} state="silenced" />`}</td>
    <td data-label="class">${v.class || "unknown"}</td>
    <td data-label="job loses" class="n">
      ${lossOf(v)}${v.period && html`<br />every ${v.period} steps`}
    </td>
    <td data-label="since" class="n">${span(view.at - v.since)}</td>
    <td data-label="cost" class="n">${priceOf(v)}</td>
    <td class="evidence"><${Evidence} v=${v} /></td>
    <td><div class="buttons">
      <a href=${link("episode", v.episode, id)}>episode</a>
      <${Copy} text=${commandOf(v)} label="copy command" />
      ${v.node && html`<${Silence} target=${v.node} cluster=${id} />`}
    </div></td>
  </tr>`;
}

function Who({ v, id }) {
  const node = v.node && html`<a href=${link("node", v.node, id)}>${v.node}</a>`;
  const job = v.job && html`<a href=${link("job", v.job, id)}>${v.job}</a>`;
  return html`${node || v.shared || "all"}${v.rank != null && `, rank ${v.rank}`}
    ${job && html`<br /><span class="small">job ${job}</span>`}`;
}

// What is known about the cause comes first, then what was measured, then what to do.
function Evidence({ v }) {
  const lines = [
    v.cause && html`<strong>${v.cause}</strong>`,
    v.collective && `waited for at ${v.collective}`,
    v.link && `link ${v.link}`,
    v.evidence,
    v.next && html`Next: ${said(v.next)}`,
    v.silenced && html`<span class="dim">silenced ${v.silenced}</span>`,
  ].filter(Boolean);
  return lines.map((line, i) => html`${i > 0 && html`<br />`}${line}`);
}

// States of episodes along the time: of the last day, or of `from` to `to`.
export function Timeline({ view, episodes, most = 15, from = view.at - DAY, to = view.at }) {
  if (!episodes.length) return html`<p class="dim">No episode in the last 24 hours.</p>`;
  const isDay = to - from >= DAY;
  const latest = (a, b) =>
    (b.until ?? Infinity) - (a.until ?? Infinity) || b.verdict.since - a.verdict.since;
  const shown = [...episodes].sort(latest).slice(0, most);
  return html`<ul class="timeline">${shown.map((e) => html`<li key=${e.verdict.episode}>
      <span class="label">
        <a href=${link("episode", e.verdict.episode, view.cluster_id)}>${who(e.verdict)}</a>
        <span class="dim"> ${lasting(e, view.at)}</span>
      </span>
      <${Track} episode=${e} now=${view.at} from=${from} to=${to} />
    </li>`)}</ul>
    <div class="axis" aria-hidden="true">
      <span></span><span>${isDay ? "24 h ago" : clock(from)}</span>
      <span>${isDay ? "now" : clock(to)}</span>
    </div>
    ${episodes.length > most && html`<p class="dim small">and ${episodes.length - most} more</p>`}`;
}

function lasting(e, now) {
  const cost = e.cost_usd == null ? "" : ", " + dollars(e.cost_usd);
  const took = span((e.until ?? now) - e.verdict.since);
  return (e.until == null ? "open for " : "lasted ") + took + cost;
}

function Track({ episode, now, from, to }) {
  const place = (at) => Math.max(0, Math.min(100, (100 * (at - from)) / Math.max(1, to - from)));
  const bars = episode.changes.map(([at, state], i) => {
    if (state === "resolved") return null;
    const left = place(i ? at : episode.verdict.since);
    const right = place(episode.changes[i + 1]?.[0] ?? episode.until ?? now);
    const style = { left: Math.min(99.5, left) + "%", width: Math.max(0, right - left) + "%" };
    return html`<span class=${state} style=${style}></span>`;
  });
  return html`<span class="track" aria-hidden="true">${bars}</span>`;
}
