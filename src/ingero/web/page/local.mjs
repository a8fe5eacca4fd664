// The page of one node, served by the node itself: what its recorder found, and how long operations took.
import { render } from "./preact.mjs";
import { useEffect, useState } from "./hooks.mjs";
import { Badge, Facts, Login, clock, html, said, span } from "./parts.mjs";
import { getToken, headers, setToken } from "./token.mjs";

const REFRESH_MS = 5000, SHARE = 20;  // a large trace is read less often: the job comes first
const MOST_CHAINS = 50, SEVERITIES = ["CRITICAL", "HIGH", "MEDIUM", "LOW"];
const count = (value) => value.toLocaleString("en");
const seconds = (text) => new Date(text).getTime() / 1000;

class Refused extends Error {}

async function read(path) {
  const reply = await fetch(path, { headers: headers(), cache: "no-store" });
  const answer = await reply.json().catch(() => ({}));
  if (reply.status === 401 || reply.status === 403) throw new Refused(reply.status === 401 ? "" : answer.error);
  if (!reply.ok) throw new Error(answer.error || `the answer had status ${reply.status}`);
  return { node: reply.headers.get("x-ingero-node") || "This node", answer };
}

async function load() {
  try {
    const [overview, chains, ops] = await Promise.all(["overview", "chains", "ops"].map((name) => read("/api/v1/" + name)));
    return { node: overview.node, overview: overview.answer, chains: chains.answer.chains, ops: ops.answer, at: Date.now() / 1000 };
  } catch (problem) {
    return problem instanceof Refused ? { refused: problem.message } : { problem: problem instanceof TypeError ? "the node does not answer" : problem.message };
  }
}

function App() {
  const [shown, setShown] = useState(null), [problem, setProblem] = useState(""), [refused, setRefused] = useState(null);
  const [round, again] = useState(0);
  useEffect(() => {
    let timer, isOver = false;
    const refresh = async () => {
      clearTimeout(timer);
      const began = Date.now(), found = await load();
      if (isOver) return;
      setRefused(found.refused ?? null);
      setProblem(found.problem ?? "");
      if (found.node) setShown(found);
      clearTimeout(timer);
      if (!document.hidden && found.refused === undefined) timer = setTimeout(refresh, Math.max(REFRESH_MS, SHARE * (Date.now() - began)));
    };
    const seen = () => { if (!document.hidden) refresh(); };
    document.addEventListener("visibilitychange", seen);
    refresh();
    return () => { isOver = true; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); };
  }, [round]);
  const name = shown?.node ?? "This node";
  useEffect(() => { document.title = name + " – Ingero"; }, [name]);
  return html`<a class="skip" href="#main">Skip to the content</a>
    ${problem && shown && html`<div class="banner" role="alert">What you see is old: ${problem}. The page goes on by itself.</div>`}
    <header><div class="bar"><a class="brand" href="/">Ingero node</a><span>${shown?.node}</span><span class="right">${shown && html`<span>as of ${clock(shown.at)}</span>`}${getToken() && html`<button type="button" onClick=${() => { setToken(""); location.reload(); }}>forget token</button>`}</span></div></header>
    <main id="main" tabindex="-1">${refused !== null ? html`<${Login} title="This node wants a token" text=${refused || "Enter the token of this node. It is kept for this tab only."} again=${() => again((n) => n + 1)} />`
      : shown ? html`<${Trace} ...${shown} />` : problem ? html`<h1>Cannot show the trace</h1><p role="alert">${problem}</p>` : html`<h1>Ingero node</h1><p class="dim">reading the trace …</p>`}</main>`;
}

function Trace({ node, overview, chains, ops, at }) {
  if (!overview.event_count && !overview.session_count) return html`<div role="status" class="headline not_sure"><h1>Nothing was recorded on ${node} yet.</h1><p>Run <code>sudo ingero trace</code> on this node.</p></div>
    <${System} overview=${overview} />`;
  const sorted = [...chains].sort((a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity) || seconds(b.detected_at) - seconds(a.detected_at));
  const [worst] = sorted, isBad = worst && ["CRITICAL", "HIGH"].includes(worst.severity);
  return html`<div role="status" class=${"headline " + (isBad ? "slow" : worst ? "suspect" : "calm")}><h1>${worst ? `${node}: ${worst.summary}` : `Nothing on ${node} was found slow with a cause.`}</h1>
      ${worst && html`<p class="dim">${span(at - seconds(worst.detected_at))} ago${worst.recommendations?.length ? html` · next: ${said(worst.recommendations[0])}` : ""}</p>`}</div>
    ${overview.recorded_until && html`<p class="dim">no recorder is running: recorded until ${clock(seconds(overview.recorded_until))}</p>`}
    <${System} overview=${overview} />
    <h2>Causal chains</h2>${sorted.length ? sorted.slice(0, MOST_CHAINS).map((chain) => html`<${Chain} key=${chain.id} chain=${chain} at=${at} />`) : html`<p class="dim">No chains.</p>`}
    ${overview.chain_count > MOST_CHAINS && html`<p class="dim small">and ${count(overview.chain_count - MOST_CHAINS)} more: <code>ingero explain --since</code></p>`}
    <h2>Operations</h2><${Operations} ops=${ops} />`;
}

const TONES = { CRITICAL: "slow", HIGH: "slow", MEDIUM: "suspect", LOW: "healthy" };
const Chain = ({ chain, at }) => html`<article class="chain"><h3><${Badge} state=${TONES[chain.severity] ?? "learning"}>${chain.severity}</${Badge}> ${chain.summary}</h3>
  <p>${chain.explanation}</p>
  ${chain.recommendations?.length ? html`<ul>${chain.recommendations.map((line) => html`<li>${said(line)}</li>`)}</ul>` : ""}
  <p class="dim small">${clock(seconds(chain.detected_at))}, ${span(at - seconds(chain.detected_at))} ago</p></article>`;

function System({ overview }) {
  const now = overview.system, shown = (value, digits, unit) => value == null ? "–" : value.toFixed(digits) + unit;
  return html`<${Facts} items=${[["events", count(overview.event_count)], ["chains", count(overview.chain_count), overview.chain_count > 0], ["recordings", count(overview.session_count)],
    now && ["CPU", shown(now.cpu_percent, 0, "%")], now && ["memory", shown(now.mem_percent, 0, "%")], now && ["load", shown(now.load_avg, 2, "")],
    overview.gpu && ["GPU", overview.gpu.model], overview.gpu?.driver_version && ["driver", overview.gpu.driver_version]]} />`;
}

function Operations({ ops }) {
  if (!ops.ops?.length) return html`<p class="dim">No operations were recorded.</p>`;
  const columns = ops.mode === "aggregate" ? ["avg_us", "min_us", "max_us"] : ["p50_us", "p95_us", "p99_us"];
  return html`<div class="wide"><table class="stack"><thead><tr><th scope="col">operation</th><th scope="col">layer</th><th scope="col" class="n">count</th>${columns.map((name) => html`<th scope="col" class="n">${name.replace("_us", " µs")}</th>`)}</tr></thead>
    <tbody>${ops.ops.map((op) => html`<tr key=${op.source + op.operation}><th scope="row">${op.operation}</th><td data-label="layer">${op.source}</td><td class="n" data-label="count">${count(op.count)}</td>${columns.map((name) => html`<td class="n" data-label=${name.replace("_us", " µs")}>${op[name] == null ? "–" : count(Math.round(op[name]))}</td>`)}</tr>`)}</tbody></table></div>`;
}

render(html`<${App} />`, document.getElementById("app"));
