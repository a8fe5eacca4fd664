// One episode: what happened when, why nobody else was blamed, who was told, what it has cost, and
// a file to send.
import { useState } from "./hooks.mjs";
import {
  Badge, Columns, Copy, Facts, Sentence, html, said, saveFile, useAnswer, useTitle,
} from "./parts.mjs";
import {
  WORDS, capital, clock, commandOf, dollars, link, lossOf, many, percent, priceOf, span, who,
} from "./format.mjs";
import { Timeline } from "./verdicts.mjs";
import { Silence } from "./silence.mjs";
import { openInPerfetto, saveTrace } from "./perfetto.mjs";
import { ask } from "./token.mjs";

const ASK_EVERY_MS = 5000, MOST_PEERS = 8;
const MESSAGES = { begin: "it began", acknowledge: "it is silenced", end: "it is over" };

// An episode as the stream has it, from the answer about one that is not in the stream any more.
function fromAnswer({ latest, ended, cost_usd, verdicts }) {
  const isChange = ({ verdict }, i) => !i || verdicts[i - 1].verdict.state !== verdict.state;
  const changes = verdicts.filter(isChange)
    .map(({ at, verdict }) => [at, verdict.state, verdict.evidence]);
  return { verdict: latest, until: ended, cost_usd, changes };
}

export function Episode({ view, id }) {
  useTitle("Episode " + id);
  const path = `/api/v1/episodes/${encodeURIComponent(id)}`;
  const answer = useAnswer(() => ask(path), ASK_EVERY_MS, [id]);
  const episode = view.episodes.get(id) ?? (answer?.latest ? fromAnswer(answer) : null);
  if (!episode && !answer) return html`<h1>Episode ${id}</h1><p class="dim">asking …</p>`;
  const unknown = `Fleet does not know episode ${id}.`;
  if (!episode) return html`<${Sentence} kind="not_sure" text=${unknown}>
    <p>It keeps the last episodes, also over a restart where <code>state_dir</code> is set. Echo has
      the history.</p></${Sentence}>`;
  const cluster = answer?.cluster ?? view.cluster_id, { verdict: v, until } = episode;
  const end = Math.max(until ?? view.at, v.since + 10);
  return html`<${Title} v=${v} until=${until} now=${view.at} />
    <${EpisodeFacts} episode=${episode} cluster=${cluster} />
    <h2>Evidence</h2><${Evidence} v=${v} />
    <${Actions} v=${v} id=${id} cluster=${cluster} />
    <h2>What happened</h2><${Changes} changes=${episode.changes} />
    <${Timeline} view=${{ cluster_id: cluster, at: view.at }} episodes=${[episode]} from=${v.since}
      to=${end} />
    <h2>Why nobody else was blamed</h2>
    <${Answered} answer=${answer}>${() => html`<${Peers} answer=${answer} />`}</${Answered}>
    <h2>Where the alert went</h2>
    <${Answered} answer=${answer}>${() => html`<${Told} answer=${answer} />`}</${Answered}>
    <h2>On the node itself</h2>
    <p>Fleet keeps the steps of the ranks around an episode, which is what Perfetto shows. On the
      node, <code>ingero export --format perfetto</code> writes a timeline of everything that was
      recorded there.</p>`;
}

function Title({ v, until, now }) {
  const isOpen = until == null, kind = v.state === "straggler" ? "slow" : v.state;
  const long = span((until ?? now) - v.since);
  const end = isOpen ? `for ${long}` : `until ${clock(until)}, ${long}`;
  return html`<${Sentence} kind=${isOpen ? kind : "calm"} text=${sentence(v, isOpen)}>
    <p class="dim">since ${clock(v.since)}, ${end}</p></${Sentence}>`;
}

function sentence(v, isOpen) {
  const name = who(v), text = capital(name);
  if (!isOpen) return `${text} was slow; it is over.`;
  const sentences = {
    straggler: `${text} is slow.`, suspect: `${text} is suspected.`,
    recovering: `${text} is recovering.`, late: `${text} is late, at no cost.`,
    fleet_event: `Slower together: ${name}.`, not_sure: `Not sure about ${name}.`,
  };
  return sentences[v.state] ?? text;
}

function EpisodeFacts({ episode: { verdict: v, cost_usd: cost }, cluster }) {
  return html`<${Facts} items=${[
    ["state", html`<${Badge} state=${v.state} />`],
    ["job loses", lossOf(v)],
    ["cost so far", cost == null ? "no price known" : dollars(cost)],
    v.usd_per_hour != null && ["while slow", priceOf(v)],
    ["class", v.class || "unknown"],
    ["confidence", percent(v.confidence, 0)],
    ["peers", v.peers ?? 0],
    v.job && ["job", html`<a href=${link("job", v.job, cluster)}>${v.job}</a>`],
    v.node && ["node", html`<a href=${link("node", v.node, cluster)}>${v.node}</a>`],
  ]} />`;
}

const Evidence = ({ v }) => html`${v.cause && html`<p><strong>${v.cause}</strong></p>`}
  ${v.collective && html`<p>The job waits for it at ${v.collective}.</p>`}
  ${v.link && html`<p>link ${v.link}</p>`}
  <p>${v.evidence || "none yet"}</p>
  ${v.next && html`<p>Next: ${said(v.next)}</p>`}`;

function Actions({ v, id, cluster }) {
  const [problem, setProblem] = useState("");
  const run = (what) => async () => setProblem(await what(id));
  return html`<div class="buttons">
    <${Copy} text=${commandOf(v)} label="copy command" />
    ${v.node && html`<${Silence} target=${v.node} cluster=${cluster} />`}
    <button type="button" onClick=${run(openInPerfetto)}>open in Perfetto</button>
    <button type="button" onClick=${run(saveTrace)}>save the trace</button>
    <button type="button" onClick=${run(savePage)}>save as one HTML file</button>
    ${problem && html`<span role="alert">${problem}</span>`}
  </div>`;
}

const Changes = ({ changes }) => html`<ol class="changes">${changes.map(([at, state, evidence]) =>
  html`<li>
    <strong>${WORDS[state] ?? state}</strong> at ${clock(at)}${evidence && `: ${evidence}`}
  </li>`)}</ol>`;

// What needs Fleet's answer, once it is there.
function Answered({ answer, children }) {
  if (!answer) return html`<p class="dim">asking …</p>`;
  return answer.error ? html`<p role="alert">${answer.error}</p>` : children();
}

function Peers({ answer: { peers, peers_of: all, peers_at: at } }) {
  if (!peers.length) return html`<p class="dim">
    There is no peer to compare with, or nothing was kept.</p>`;
  const of = all || peers.length, when = at ? ` at ${clock(at)}` : "";
  return html`<p>${many(of, "peer")} were compared${when}; those closest to their limit first.</p>
    <${PeerTable} peers=${peers.slice(0, MOST_PEERS)} />
    ${peers.length > MOST_PEERS && html`<details>
      <summary>${peers.length - MOST_PEERS} more</summary>
      <${PeerTable} peers=${peers.slice(MOST_PEERS)} />
    </details>`}
    ${of > peers.length && html`<p class="dim small">and ${of - peers.length} further off</p>`}`;
}

const PeerTable = ({ peers }) => html`<div class="wide"><table class="stack">
  <${Columns} names=${["peer", "#above its baseline", "#of its limit", "why not"]} />
  <tbody>${peers.map((peer) => html`<tr key=${peer.node + peer.rank}>
    <th scope="row">${who(peer)}</th>
    <td class="n" data-label="above its baseline">${percent(peer.excess)}</td>
    <td class="n" data-label="of its limit">${percent(peer.bars, 0)}</td>
    <td>${peer.reason}</td>
  </tr>`)}</tbody></table></div>`;

function Told({ answer: { alerts, alert_targets: targets } }) {
  if (!alerts.length && !targets.length) return html`<p class="dim">
    Nowhere: no target is named under <code>alerts:</code> in Fleet’s configuration.</p>`;
  if (!alerts.length) return html`<p class="dim">
    Nothing was sent to ${targets.join(", ")}: only confirmed slowness is sent.</p>`;
  return html`<div class="wide"><table class="stack">
    <${Columns} names=${["target", "message", "outcome", "when"]} />
    <tbody>${alerts.map((alert, i) => html`<tr key=${i}>
      <th scope="row">${alert.target}</th>
      <td data-label="message">${MESSAGES[alert.message] ?? alert.message}</td>
      <td data-label="outcome">
        <span class=${alert.outcome === "delivered" ? "" : "bigger"}>${alert.outcome}</span>
        ${alert.why && `: ${alert.why}`}</td>
      <td data-label="when">${alert.outcome === "waiting" ? "since " : ""}${clock(alert.at)}</td>
    </tr>`)}</tbody></table></div>`;
}

// The screen as it is now, with its style and without what needs Fleet. Serialised text is escaped.
async function savePage(id) {
  const main = document.querySelector("main").cloneNode(true), about = document.createElement("p");
  for (const each of main.querySelectorAll("button, dialog, .buttons")) each.remove();
  for (const each of main.querySelectorAll("a")) each.replaceWith(each.textContent);
  about.textContent = `Episode ${id}, saved from Ingero Fleet on ${new Date().toISOString()}.`;
  main.append(about);
  const reply = await fetch("/static/page.css").catch(() => null);
  if (!reply?.ok) return "Fleet does not answer, so the style of the page is missing";
  const head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">' +
    `<title>Episode</title><style>${await reply.text()}</style>`;
  const page = `<html lang="en"><head>${head}</head><body>${main.outerHTML}</body></html>`;
  saveFile(["<!doctype html>\n", page, "\n"], "text/html", `episode-${id}.html`);
  return "";
}
