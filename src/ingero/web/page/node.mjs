// One node, beside its median peer: what differs most comes first.
import { useEffect, useState } from "./hooks.mjs";
import { Badge, Facts, Silence, Timeline, Verdicts, html, link, number, span, useFocusTitle } from "./parts.mjs";
import { Chart } from "./chart.mjs";
import { NODE } from "./live.mjs";
import { ask } from "./token.mjs";

const ASK_EVERY_MS = 5000;

export function Node({ live, view, id }) {
  useFocusTitle(id);
  const node = view.nodes.get(id), [answer, setAnswer] = useState(null), [past, setPast] = useState([]);
  useEffect(() => {
    let isOver = false;
    const load = async () => {
      const found = await ask(`/api/v1/node?cluster_id=${encodeURIComponent(view.cluster_id)}&node_id=${encodeURIComponent(id)}`);
      if (!isOver) setAnswer(found);
    };
    load();
    const timer = setInterval(load, ASK_EVERY_MS);
    return () => { isOver = true; clearInterval(timer); };
  }, [id, view.cluster_id]);
  useEffect(() => { if (node) setPast((before) => [...before.slice(-299), [live.at, node[NODE.score], view.summary.threshold, view.summary.median]]); }, [live.at]);
  if (!node) return html`<div role="status" class="headline not_sure"><h1>${id} is not known in cluster ${view.cluster_id}.</h1><p>Silent nodes are forgotten after some minutes.</p></div>`;
  const verdicts = view.verdicts.filter((v) => v.node === id && v.state !== "resolved"), slow = node[NODE.slow] || verdicts.some((v) => v.state === "straggler");
  const state = node[NODE.state];
  const sentence = slow ? `${id} is slow` : state === "silent" ? `${id} has been silent for ${span(view.at - node[NODE.seen])}` : `${id} is not slow`;
  return html`<div role="status" class=${"headline " + (slow ? "slow" : state === "silent" ? "not_sure" : "calm")}><h1>${sentence}.</h1></div>
    <${Facts} items=${[["state", html`<${Badge} state=${state || "learning"}>${state || "no score"}</${Badge}>`], ["score", number(node[NODE.score], 3), node[NODE.score] < view.summary.threshold], ["threshold", number(view.summary.threshold, 3)], ["last push", span(view.at - node[NODE.seen]) + " ago"], state === "calibrating" && node[NODE.ready] != null && ["ready in about", span(Math.max(0, node[NODE.ready] - (view.at - node[NODE.seen])))], ["ranks", node[NODE.ranks]], ["mode", node[NODE.mode] ?? "–"], ["version", node[NODE.version] ?? "–"], node[NODE.gpu] && ["GPU", node[NODE.gpu]], node[NODE.job] && ["job", html`<a href=${link("job", node[NODE.job], view.cluster_id)}>${node[NODE.job]}</a>`]]} />
    <div class="buttons"><${Silence} target=${id} cluster=${view.cluster_id} /></div>
    ${verdicts.length ? html`<h2>Verdicts</h2><${Verdicts} view=${view} verdicts=${verdicts} />` : ""}
    <h2>Beside its median peer</h2><${Compared} answer=${answer} />
    <h2>Score, while this page is open</h2>
    <${Chart} data=${[0, 1, 2, 3].map((i) => past.map((row) => row[i]))} series=${[["score", "accent"], ["threshold", "bad", [6, 4]], ["median of all", "ok"]]} label=${`Score of ${id}: ${number(node[NODE.score])}, threshold ${number(view.summary.threshold)}`} />
    <h2>Episodes of the last 24 hours</h2>
    <${Timeline} view=${view} episodes=${[...view.episodes.values()].filter((each) => each.verdict.node === id)} />
    <h2>On the node itself</h2><p>Causal chains and traces are on the node: <code>ingero explain --last</code>, or its own page with <code>ingero dashboard</code>.</p>`;
}

function Compared({ answer }) {
  if (!answer) return html`<p class="dim">asking …</p>`;
  if (answer.error) return html`<p role="alert">${answer.error}</p>`;
  if (!answer.compared.length) return html`<p class="dim">Nothing to compare: the node or its peers sent no signals lately.</p>`;
  return html`<div class="wide"><table class="stack"><thead><tr><th scope="col">signal</th><th scope="col" class="n">this node</th><th scope="col" class="n">median peer</th><th scope="col" class="n">differs by</th><th scope="col" class="n">peers</th></tr></thead>
    <tbody>${answer.compared.map((each) => html`<tr key=${each.signal + each.rank}><th scope="row">${each.signal.replaceAll("_", " ")}${each.rank == null ? "" : html` <span class="dim">rank ${each.rank}</span>`}</th><td class="n" data-label="this node">${text(each.own)}</td><td class="n" data-label="median peer">${text(each.median)}</td><td data-label="differs by" class=${"n" + (each.distance >= 4 ? " bigger" : "")}>${each.distance == null ? "–" : each.distance >= 4 ? `${each.distance.toFixed(0)} spreads` : "little"}</td><td class="n" data-label="peers">${each.peers}</td></tr>`)}</tbody></table></div>
    <p class="small dim">What differs most from the peers, in spreads of their values, comes first.</p>`;
}

const text = (value) => value == null ? "–" : Math.abs(value) >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
