// What every screen uses: markup as text, times, links, tables of verdicts, and buttons.
import { h } from "./preact.mjs";
import { useEffect, useRef, useState } from "./hooks.mjs";
import htm from "./htm.mjs";
import { ask, setToken } from "./token.mjs";

export const html = htm.bind(h);
export const HOUR = 3600;

export const percent = (value, digits = 1) => value == null ? "–" : (100 * value).toFixed(digits).replace(/^-(?=[0.]+$)/, "") + "%";
export const number = (value, digits = 2) => value == null ? "–" : value.toFixed(digits);
export const dollars = (value) => "$" + value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 120) return Math.round(s) + " s";
  if (s < 2 * HOUR) return Math.round(s / 60) + " min";
  return s < 48 * HOUR ? (s / HOUR).toFixed(1) + " h" : Math.round(s / HOUR / 24) + " days";
}

export function clock(at) {
  return new Date(at * 1000).toLocaleString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", day: "numeric", month: "short" });
}

export function lossOf(verdict) {
  if (verdict.state === "late") return "nothing";
  if (verdict.loss == null) return "–";
  if (verdict.at_most) return "≤ " + percent(verdict.loss);
  return percent(verdict.loss) + (verdict.loss_error == null ? "" : " ±" + percent(verdict.loss_error));
}

export const who = (v) => v.rank != null && v.node ? `rank ${v.rank} on ${v.node}` : v.node || v.shared || "the whole job";
export const WORDS = { straggler: "slow", fleet_event: "all slow", not_sure: "not sure" };
export const ORDER = ["straggler", "fleet_event", "not_sure", "suspect", "recovering", "late", "resolved"];

// One URL per view; the cluster is a parameter because ids may repeat between clusters.
export function link(kind, id, cluster) {
  const query = cluster ? "?cluster_id=" + encodeURIComponent(cluster) : "";
  return (kind ? "/" + kind + (id == null ? "" : "/" + encodeURIComponent(id)) : "/") + query;
}

export const Badge = ({ state, children }) => html`<span class=${"badge " + state}>${children ?? WORDS[state] ?? state}</span>`;
export const Facts = ({ items }) => html`<dl class="facts">${items.filter(Boolean).map(([name, value, alert]) =>
  html`<div class=${alert ? "alert" : ""}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

export function Copy({ text, label }) {
  const [said, say] = useState("");
  const copy = async () => {
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(text); else copyOld(text);
      say("copied");
    } catch { say("cannot copy"); }
    setTimeout(() => say(""), 2000);
  };
  return html`<button type="button" onClick=${copy} title=${text}>${said || label}</button>`;
}

function copyOld(text) {  // pages that came over plain HTTP have no clipboard
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

// The command in a next step stands between backquotes.
export function commandOf(verdict) {
  const found = /`([^`]+)`/.exec(verdict.next || "");
  return found ? found[1] : `ingero replay ${verdict.episode}`;
}

// Text in which commands stand between backquotes.
export const said = (text) => text.split("`").map((part, i) => i % 2 ? html`<code>${part}</code>` : part);

export function Silence({ target, cluster }) {
  const dialog = useRef(), why = useRef(), [problem, setProblem] = useState("");
  const send = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const body = { target, cluster, for_s: Number(form.get("for")), why: form.get("why") };
    const reply = await ask("/api/v1/silences", body);
    if (reply.error) setProblem(reply.error); else { setProblem(""); dialog.current.close(); }
  };
  return html`<button type="button" onClick=${() => { dialog.current.showModal(); why.current.focus(); }}>silence</button>
    <dialog ref=${dialog} aria-label=${"Silence " + target}>
      <form onSubmit=${send}>
        <h3>Silence ${target}</h3>
        <p class="dim small">It is still measured and shown, but causes no alerts.</p>
        <label>How long<select name="for"><option value="3600">1 hour</option><option value="14400" selected>4 hours</option><option value="86400">1 day</option><option value="604800">1 week</option></select></label>
        <label>Why<input name="why" ref=${why} required maxlength="500" placeholder="GPU is being replaced" autocomplete="off" /></label>
        ${problem && html`<p role="alert" class="bigger">${problem}</p>`}
        <div class="buttons"><button class="main">Silence</button><button type="button" onClick=${() => dialog.current.close()}>Cancel</button></div>
      </form>
    </dialog>`;
}

export function Lift({ silence }) {
  const [problem, setProblem] = useState("");
  const lift = async () => {
    const body = { target: silence.target, ...(silence.cluster ? { cluster: silence.cluster } : {}) };
    const reply = await ask("/api/v1/silences/lift", body);
    setProblem(reply.error || "");
  };
  return html`<button type="button" onClick=${lift}>lift</button>${problem && html` <span role="alert">${problem}</span>`}`;
}

export function Verdicts({ view, verdicts }) {
  const rows = [...verdicts].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (b.loss ?? 0) - (a.loss ?? 0));
  const id = view.cluster_id;
  return html`<div class="wide"><table class="stack"><thead><tr>
      ${["who", "state", "class", "job loses", "since", "cost", "evidence and next step", ""].map((t) => html`<th scope="col">${t || html`<span class="skip">actions</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map((v) => html`<tr key=${v.episode}>
      <th scope="row">${v.node ? html`<a href=${link("node", v.node, id)}>${v.node}</a>` : v.shared || "all"}${v.rank != null && html`, rank ${v.rank}`}${v.job && html`<br /><span class="small">job <a href=${link("job", v.job, id)}>${v.job}</a></span>`}</th>
      <td><${Badge} state=${v.state} />${v.silenced && html` <${Badge} state="silenced" />`}</td>
      <td data-label="class">${v.class || "unknown"}</td>
      <td data-label="job loses" class="short">${lossOf(v)}${v.period ? html`<br />every ${v.period} steps` : ""}</td>
      <td data-label="since">${span(view.at - v.since)}</td>
      <td data-label="cost" class="short">${v.usd_per_hour == null ? "–" : (v.at_most ? "≤ " : "") + dollars(v.usd_per_hour) + "/h"}</td>
      <td class="evidence">${v.cause && html`<strong>${v.cause}</strong><br />`}${v.collective && html`waited for at ${v.collective}<br />`}${v.link && html`link ${v.link}<br />`}${v.evidence}${v.next && html`<br />Next: ${said(v.next)}`}${v.silenced && html`<br /><span class="dim">silenced ${v.silenced}</span>`}</td>
      <td><div class="buttons"><a href=${link("episode", v.episode, id)}>episode</a><${Copy} text=${commandOf(v)} label="copy command" />${v.node && html`<${Silence} target=${v.node} cluster=${id} />`}</div></td>
    </tr>`)}</tbody></table></div>`;
}

const DAY = 24 * HOUR;

// States of episodes along the time: of the last day, or of `from` to `to`.
export function Timeline({ view, episodes, most = 15, from = view.at - DAY, to = view.at }) {
  const place = (at) => Math.max(0, Math.min(100, (100 * (at - from)) / Math.max(1, to - from))), isDay = to - from >= DAY;
  const sorted = [...episodes].sort((a, b) => (b.until ?? Infinity) - (a.until ?? Infinity) || b.verdict.since - a.verdict.since);
  if (!sorted.length) return html`<p class="dim">No episode in the last 24 hours.</p>`;
  return html`<ul class="timeline">${sorted.slice(0, most).map((e) => html`<li key=${e.verdict.episode}>
      <span class="label"><a href=${link("episode", e.verdict.episode, view.cluster_id)}>${who(e.verdict)}</a> <span class="dim">${e.until == null ? "open for " + span(view.at - e.verdict.since) : "lasted " + span(e.until - e.verdict.since)}${e.cost_usd == null ? "" : ", " + dollars(e.cost_usd)}</span></span>
      <span class="track" aria-hidden="true">${e.changes.map((c, i) => {
        const until = e.changes[i + 1]?.[0] ?? e.until ?? view.at;
        return c[1] !== "resolved" && html`<span class=${c[1]} style=${{ left: Math.min(99.5, place(i ? c[0] : e.verdict.since)) + "%", width: Math.max(0, place(until) - place(i ? c[0] : e.verdict.since)) + "%" }}></span>`;
      })}</span></li>`)}</ul>
    <div class="axis" aria-hidden="true"><span></span><span>${isDay ? "24 h ago" : clock(from)}</span><span>${isDay ? "now" : clock(to)}</span></div>
    ${sorted.length > most && html`<p class="dim small">and ${sorted.length - most} more</p>`}`;
}

export function Headline({ view, more }) {
  const line = view.summary.headline, title = more ? "h2" : "h1";
  return html`<div class=${"headline " + line.kind + (more ? " more" : "")} role="status">
    <${title}>${line.text}</${title}>
    <p class="dim">${line.since != null && html`for ${span(view.at - line.since)}`}${line.next_step && html` · next: ${said(line.next_step)}`}${line.episode && html` · <a href=${link("episode", line.episode, view.cluster_id)}>why</a>`}</p>
  </div>`;
}

// The token field; `again` tries once more with what was entered.
export function Login({ title, text, again }) {
  const enter = (event) => { event.preventDefault(); setToken(new FormData(event.target).get("token").trim()); again(); };
  return html`<div class="login"><h1>${title}</h1><p role="status">${text}</p>
    <form onSubmit=${enter}><input name="token" type="password" aria-label="token" autocomplete="off" required autofocus /><button class="main">Open</button></form></div>`;
}

export function useFocusTitle(title) {
  useEffect(() => { document.title = title + " – Ingero"; }, [title]);
}
