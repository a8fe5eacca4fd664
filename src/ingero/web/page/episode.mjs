// One episode: what happened when, why nobody else was blamed, what it has cost, and a file to send.
import { useEffect, useState } from "./hooks.mjs";
import { Badge, Copy, Facts, Silence, Timeline, clock, commandOf, dollars, html, link, lossOf, percent, said, span, useFocusTitle, who, WORDS } from "./parts.mjs";
import { ask } from "./token.mjs";

const ASK_EVERY_MS = 5000;

export function Episode({ view, id }) {
  const episode = view.episodes.get(id), [answer, setAnswer] = useState(null);
  useFocusTitle("Episode " + id);
  useEffect(() => {
    let isOver = false;
    const load = async () => {
      const found = await ask(`/api/v1/episodes/${encodeURIComponent(id)}/peers?cluster_id=${encodeURIComponent(view.cluster_id)}`);
      if (!isOver) setAnswer(found);
    };
    load();
    const timer = setInterval(load, ASK_EVERY_MS);
    return () => { isOver = true; clearInterval(timer); };
  }, [id, view.cluster_id]);
  if (!episode) return html`<div role="status" class="headline not_sure"><h1>Fleet does not know episode ${id}.</h1><p>It keeps the last 24 hours and forgets them when it restarts. Echo has the history.</p></div>`;
  const v = episode.verdict, isOpen = episode.until == null;
  return html`<div role="status" class=${"headline " + (isOpen ? (v.state === "straggler" ? "slow" : v.state) : "calm")}>
      <h1>${sentence(v, isOpen)}</h1><p class="dim">since ${clock(v.since)}${isOpen ? `, for ${span(view.at - v.since)}` : `, until ${clock(episode.until)}, ${span(episode.until - v.since)}`}</p></div>
    <${Facts} items=${[["state", html`<${Badge} state=${v.state} />`], ["job loses", lossOf(v)], ["cost so far", episode.cost_usd == null ? "no price known" : dollars(episode.cost_usd)], v.usd_per_hour != null && ["while slow", dollars(v.usd_per_hour) + "/h"], ["class", v.class || "unknown"], ["confidence", v.confidence == null ? "–" : percent(v.confidence, 0)], ["peers", v.peers ?? 0], v.job && ["job", html`<a href=${link("job", v.job, view.cluster_id)}>${v.job}</a>`], v.node && ["node", html`<a href=${link("node", v.node, view.cluster_id)}>${v.node}</a>`]]} />
    <h2>Evidence</h2>${v.cause && html`<p><strong>${v.cause}</strong></p>`}${v.collective && html`<p>The job waits for it at ${v.collective}.</p>`}${v.link && html`<p>link ${v.link}</p>`}<p>${v.evidence || "none yet"}</p>${v.next && html`<p>Next: ${said(v.next)}</p>`}
    <div class="buttons"><${Copy} text=${commandOf(v)} label="copy command" />${v.node && html`<${Silence} target=${v.node} cluster=${view.cluster_id} />`}<button type="button" onClick=${() => save(id)}>save as one HTML file</button></div>
    <h2>What happened</h2><ol class="changes">${episode.changes.map(([at, state, evidence]) => html`<li><strong>${WORDS[state] ?? state}</strong> at ${clock(at)}${evidence && html`: ${evidence}`}</li>`)}</ol>
    <${Timeline} view=${view} episodes=${[episode]} />
    <h2>Why nobody else was blamed</h2><${Peers} answer=${answer} />
    <h2>Look closer</h2>
    <p>On the node, <code>ingero export --format perfetto</code> writes a timeline of its recording that Perfetto opens.</p>`;
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
  return html`<p>${answer.of} peers were compared${answer.at ? ` at ${clock(answer.at)}` : ""}; those closest to their limit first.</p>
    <div class="wide"><table class="stack"><thead><tr><th scope="col">peer</th><th scope="col" class="n">above its baseline</th><th scope="col" class="n">of its limit</th><th scope="col">why not</th></tr></thead>
    <tbody>${answer.peers.map((p) => html`<tr key=${p.node + p.rank}><th scope="row">${p.rank == null ? p.node : `rank ${p.rank} on ${p.node}`}</th><td class="n" data-label="above its baseline">${percent(p.excess)}</td><td class="n" data-label="of its limit">${percent(p.bars, 0)}</td><td>${p.reason}</td></tr>`)}</tbody></table></div>
    ${answer.of > answer.peers.length && html`<p class="dim small">and ${answer.of - answer.peers.length} more</p>`}`;
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
