// One episode: what happened when, why nobody else was blamed, who was told, what it has cost, and a file to send.
import { useEffect, useState } from "./hooks.mjs";
import { Badge, Copy, Facts, Silence, Timeline, clock, commandOf, dollars, html, link, lossOf, percent, said, span, useFocusTitle, who, WORDS } from "./parts.mjs";
import { openInPerfetto, saveTrace } from "./perfetto.mjs";
import { ask } from "./token.mjs";

const ASK_EVERY_MS = 5000, MOST_PEERS = 20;

// An episode as the stream has it, from the answer about one that is not in the stream any more.
const fromAnswer = (a) => ({ verdict: a.latest, until: a.ended, cost_usd: a.cost_usd,
  changes: a.verdicts.filter((m, i) => !i || a.verdicts[i - 1].verdict.state !== m.verdict.state).map((m) => [m.at, m.verdict.state, m.verdict.evidence]) });

export function Episode({ view, id }) {
  const [answer, setAnswer] = useState(null), listed = view.episodes.get(id);
  const episode = listed ?? (answer?.latest ? fromAnswer(answer) : null), cluster = answer?.cluster ?? view.cluster_id;
  useFocusTitle("Episode " + id);
  useEffect(() => {
    let isOver = false;
    const load = async () => {
      const found = await ask(`/api/v1/episodes/${encodeURIComponent(id)}`);
      if (!isOver) setAnswer(found);
    };
    load();
    const timer = setInterval(load, ASK_EVERY_MS);
    return () => { isOver = true; clearInterval(timer); };
  }, [id]);
  if (!episode && !answer) return html`<h1>Episode ${id}</h1><p class="dim">asking …</p>`;
  if (!episode) return html`<div role="status" class="headline not_sure"><h1>Fleet does not know episode ${id}.</h1><p>It keeps the last episodes, also over a restart where <code>state_dir</code> is set. Echo has the history.</p></div>`;
  const v = episode.verdict, isOpen = episode.until == null;
  return html`<div role="status" class=${"headline " + (isOpen ? (v.state === "straggler" ? "slow" : v.state) : "calm")}>
      <h1>${sentence(v, isOpen)}</h1><p class="dim">since ${clock(v.since)}${isOpen ? `, for ${span(view.at - v.since)}` : `, until ${clock(episode.until)}, ${span(episode.until - v.since)}`}</p></div>
    <${Facts} items=${[["state", html`<${Badge} state=${v.state} />`], ["job loses", lossOf(v)], ["cost so far", episode.cost_usd == null ? "no price known" : dollars(episode.cost_usd)], v.usd_per_hour != null && ["while slow", dollars(v.usd_per_hour) + "/h"], ["class", v.class || "unknown"], ["confidence", v.confidence == null ? "–" : percent(v.confidence, 0)], ["peers", v.peers ?? 0], v.job && ["job", html`<a href=${link("job", v.job, cluster)}>${v.job}</a>`], v.node && ["node", html`<a href=${link("node", v.node, cluster)}>${v.node}</a>`]]} />
    <h2>Evidence</h2>${v.cause && html`<p><strong>${v.cause}</strong></p>`}${v.collective && html`<p>The job waits for it at ${v.collective}.</p>`}${v.link && html`<p>link ${v.link}</p>`}<p>${v.evidence || "none yet"}</p>${v.next && html`<p>Next: ${said(v.next)}</p>`}
    <div class="buttons"><${Copy} text=${commandOf(v)} label="copy command" />${v.node && html`<${Silence} target=${v.node} cluster=${cluster} />`}<${OpenTrace} id=${id} /><button type="button" onClick=${() => save(id)}>save as one HTML file</button></div>
    <h2>What happened</h2><ol class="changes">${episode.changes.map(([at, state, evidence]) => html`<li><strong>${WORDS[state] ?? state}</strong> at ${clock(at)}${evidence && html`: ${evidence}`}</li>`)}</ol>
    <${Timeline} view=${{ cluster_id: cluster, at: view.at }} episodes=${[episode]} from=${v.since} to=${Math.max(episode.until ?? view.at, v.since + 10)} />
    <h2>Why nobody else was blamed</h2><${Peers} answer=${answer} />
    <h2>Where the alert went</h2><${Told} answer=${answer} />
    <h2>On the node itself</h2>
    <p>Fleet keeps the steps of the ranks around an episode, which is what Perfetto shows. On the node, <code>ingero export --format perfetto</code> writes a timeline of everything that was recorded there.</p>`;
}

// Steps and collectives of all ranks around the episode, in Perfetto or as a file.
function OpenTrace({ id }) {
  const [problem, setProblem] = useState("");
  const run = (what) => async () => setProblem(await what(id));
  return html`<button type="button" onClick=${run(openInPerfetto)}>open in Perfetto</button><button type="button" onClick=${run(saveTrace)}>save the trace</button>${problem && html`<span role="alert">${problem}</span>`}`;
}

function sentence(v, isOpen) {
  const name = who(v), text = name[0].toUpperCase() === name[0] || !/^(rank|the) /.test(name) ? name : name[0].toUpperCase() + name.slice(1);
  if (!isOpen) return `${text} was slow; it is over.`;
  return { straggler: `${text} is slow.`, suspect: `${text} is suspected.`, recovering: `${text} is recovering.`, late: `${text} is late, at no cost.`, fleet_event: `Slower together: ${name}.`, not_sure: `Not sure about ${name}.` }[v.state] ?? text;
}

function Peers({ answer }) {
  if (!answer) return html`<p class="dim">asking …</p>`;
  if (answer.error) return html`<p role="alert">${answer.error}</p>`;
  if (!answer.peers.length) return html`<p class="dim">There is no peer to compare with, or nothing was kept.</p>`;
  const of = answer.peers_of || answer.peers.length, shown = answer.peers.slice(0, MOST_PEERS);
  return html`<p>${of} peers were compared${answer.peers_at ? ` at ${clock(answer.peers_at)}` : ""}; those closest to their limit first.</p>
    <div class="wide"><table class="stack"><thead><tr><th scope="col">peer</th><th scope="col" class="n">above its baseline</th><th scope="col" class="n">of its limit</th><th scope="col">why not</th></tr></thead>
    <tbody>${shown.map((p) => html`<tr key=${p.node + p.rank}><th scope="row">${p.rank == null ? p.node : `rank ${p.rank} on ${p.node}`}</th><td class="n" data-label="above its baseline">${percent(p.excess)}</td><td class="n" data-label="of its limit">${percent(p.bars, 0)}</td><td>${p.reason}</td></tr>`)}</tbody></table></div>
    ${of > shown.length && html`<p class="dim small">and ${of - shown.length} more</p>`}`;
}

const MESSAGES = { begin: "it began", acknowledge: "it is silenced", end: "it is over" };

function Told({ answer }) {
  if (!answer) return html`<p class="dim">asking …</p>`;
  if (answer.error) return html`<p role="alert">${answer.error}</p>`;
  if (answer.alerts.length) return html`<div class="wide"><table class="stack"><thead><tr><th scope="col">target</th><th scope="col">message</th><th scope="col">outcome</th><th scope="col">when</th></tr></thead>
    <tbody>${answer.alerts.map((a, i) => html`<tr key=${i}><th scope="row">${a.target}</th><td data-label="message">${MESSAGES[a.message] ?? a.message}</td><td data-label="outcome"><span class=${a.outcome === "delivered" ? "" : "bigger"}>${a.outcome}</span>${a.why && html`: ${a.why}`}</td><td data-label="when">${a.outcome === "waiting" ? "since " : ""}${clock(a.at)}</td></tr>`)}</tbody></table></div>`;
  return answer.alert_targets.length ? html`<p class="dim">Nothing was sent to ${answer.alert_targets.join(", ")}: only what is slow for certain is told.</p>`
    : html`<p class="dim">Nobody: <code>alerts:</code> in Fleet’s configuration names who is told.</p>`;
}

// The screen as it is now, with its style and without what needs Fleet. Serialised text is escaped already.
async function save(id) {
  const css = await (await fetch("/static/page.css")).text(), main = document.querySelector("main").cloneNode(true);
  for (const each of main.querySelectorAll("button, dialog, .buttons")) each.remove();
  for (const each of main.querySelectorAll("a")) each.replaceWith(each.textContent);
  const about = document.createElement("p");
  about.textContent = `Episode ${id}, saved from Ingero Fleet on ${new Date().toISOString()}.`;
  main.append(about);
  const parts = ['<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Episode</title><style>', css, "</style></head><body>", main.outerHTML, "</body></html>\n"];
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob(parts, { type: "text/html" }));
  anchor.download = `episode-${id}.html`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
}
