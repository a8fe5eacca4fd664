// One node, beside its median peer: what differs most comes first.
import { useEffect, useState } from "./hooks.mjs";
import { Badge, Columns, Facts, Sentence, html, useAnswer, useTitle } from "./parts.mjs";
import { MISSING, change, digits, link, number, span } from "./format.mjs";
import { Timeline, Verdicts } from "./verdicts.mjs";
import { Silence } from "./silence.mjs";
import { Chart } from "./chart.mjs";
import { NODE, slowNodes } from "./live.mjs";
import { ask } from "./token.mjs";

const ASK_EVERY_MS = 5000, KEPT = 300;
const FAR = 4;  // spreads of the peers: further off is not by chance
const MOST_SIGNALS = 10;
const LINES = [["score", "accent"], ["threshold", "bad", [6, 4]], ["median of all", "ok"]];

export function Node({ live, view, id }) {
  useTitle(id);
  const { summary, cluster_id: cluster } = view, node = view.nodes.get(id);
  const query = new URLSearchParams({ cluster_id: cluster, node_id: id });
  const answer = useAnswer(() => ask(`/api/v1/node?${query}`), ASK_EVERY_MS, [id, cluster]);
  const past = usePast(node && [live.at, node[NODE.score], summary.threshold, summary.median]);
  if (!node) return html`<${Sentence} kind="not_sure"
    text=${`${id} is not known in cluster ${cluster}.`}>
    <p>Silent nodes are forgotten after some minutes.</p></${Sentence}>`;
  const verdicts = view.verdicts.filter((v) => v.node === id && v.state !== "resolved");
  const episodes = [...view.episodes.values()].filter((each) => each.verdict.node === id);
  const label = `Score of ${id}: ${number(node[NODE.score])}, ` +
    `threshold ${number(summary.threshold)}`;
  const state = slowNodes(view).has(id) || node[NODE.slow] ? "slow" : node[NODE.state];
  return html`<${Sentence} ...${sentence(id, state, view.at - node[NODE.seen])} />
    <${NodeFacts} node=${node} state=${state} view=${view} />
    <div class="buttons"><${Silence} target=${id} cluster=${cluster} /></div>
    ${verdicts.length > 0 && html`<h2>Verdicts</h2>
      <${Verdicts} view=${view} verdicts=${verdicts} />`}
    <h2>Beside its median peer</h2><${Compared} answer=${answer} />
    <h2>Score, while this page is open</h2>
    <${Chart} rows=${past} series=${LINES} label=${label} />
    <h2>Episodes of the last 24 hours</h2>
    <${Timeline} view=${view} episodes=${episodes} />
    <h2>On the node itself</h2>
    <p>Causal chains and traces are on the node: <code>ingero explain</code>, or its own page
      with <code>ingero dashboard</code>.</p>`;
}

function sentence(id, state, age) {
  if (state === "slow") return { kind: "slow", text: `${id} is slow.` };
  const silence = `${id} has been silent for ${span(age)}.`;
  if (state === "silent") return { kind: "not_sure", text: silence };
  return { kind: "calm", text: `${id} is not slow.` };
}

// The last rows; each begins with its time.
function usePast(row) {
  const [past, setPast] = useState([]);
  useEffect(() => { if (row) setPast((before) => [...before.slice(1 - KEPT), row]); }, [row?.[0]]);
  return past;
}

function NodeFacts({ node, state, view }) {
  const age = view.at - node[NODE.seen], job = node[NODE.job], ready = node[NODE.ready];
  const threshold = view.summary.threshold, score = node[NODE.score];
  return html`<${Facts} items=${[
    ["state", html`<${Badge} state=${state || "learning"}>${state || "no score"}</${Badge}>`],
    ["score", number(score, 3), score != null && score < threshold],
    ["threshold", number(threshold, 3)],
    ["last push", span(age) + " ago"],
    state === "calibrating" && ready != null && ["ready in about", span(ready - age)],
    ["ranks", node[NODE.ranks]],
    ["mode", node[NODE.mode] ?? MISSING],
    ["version", node[NODE.version] ?? MISSING],
    node[NODE.gpu] && ["GPU", node[NODE.gpu]],
    job && ["job", html`<a href=${link("job", job, view.cluster_id)}>${job}</a>`],
  ]} />`;
}

function Compared({ answer }) {
  if (!answer) return html`<p class="dim">asking …</p>`;
  if (answer.error) return html`<p role="alert">${answer.error}</p>`;
  const rows = answer.compared;
  if (!rows.length) return html`<p class="dim">
    Nothing to compare: the node or its peers sent no signals lately.</p>`;
  return html`<${Signals} rows=${rows.slice(0, MOST_SIGNALS)} />
    <p class="small dim">What differs most comes first. Red: further from the median than ${FAR}
      ${" times the usual spread of the peers."}</p>
    ${rows.length > MOST_SIGNALS && html`<details>
      <summary>${rows.length - MOST_SIGNALS} more signals</summary>
      <${Signals} rows=${rows.slice(MOST_SIGNALS)} />
    </details>`}`;
}

const difference = (share) => change(share, Math.abs(share) < 0.1 ? 1 : 0);

const Signals = ({ rows }) => html`<div class="wide"><table class="stack">
  <${Columns} names=${["signal", "#this node", "#median peer", "#difference", "#peers"]} />
  <tbody>${rows.map((each) => html`<tr key=${each.signal + each.rank}>
    <th scope="row">${each.signal.replaceAll("_", " ")}
      ${each.rank != null && html`<span class="dim"> rank ${each.rank}</span>`}</th>
    <td class="n" data-label="this node">${digits(each.own)}</td>
    <td class="n" data-label="median peer">${digits(each.median)}</td>
    <td class=${"n" + (each.distance >= FAR ? " bigger" : "")} data-label="difference">
      ${each.median ? difference(each.own / each.median - 1) : MISSING}</td>
    <td class="n" data-label="peers">${each.peers}</td>
  </tr>`)}</tbody></table></div>`;
