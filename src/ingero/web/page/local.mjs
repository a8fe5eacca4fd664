// The page of one node, served by the node itself: what its recorder found, and how long
// operations took.
import { render } from "./preact.mjs";
import { useEffect, useState } from "./hooks.mjs";
import {
  Badge, Columns, Facts, ForgetToken, Login, Sentence, html, said, useTitle,
} from "./parts.mjs";
import { MISSING, clock, count, number, span } from "./format.mjs";
import { headers } from "./token.mjs";

const REFRESH_MS = 5000, SHARE = 20;  // a large trace is read less often: the job comes first
const MOST_CHAINS = 50, SEVERITIES = ["CRITICAL", "HIGH", "MEDIUM", "LOW"];
const TONES = { CRITICAL: "slow", HIGH: "slow", MEDIUM: "suspect", LOW: "healthy" };
const SOME_NODE = "This node";
const seconds = (text) => new Date(text).getTime() / 1000;

class Refused extends Error {}

async function read(path) {
  const reply = await fetch(path, { headers: headers(), cache: "no-store" });
  const answer = await reply.json().catch(() => ({}));
  if (reply.status === 401) throw new Refused("");
  if (reply.status === 403) throw new Refused(answer.error);
  if (!reply.ok) throw new Error(answer.error || `the answer had status ${reply.status}`);
  return { node: reply.headers.get("x-ingero-node") || SOME_NODE, answer };
}

// What the page shows, or `refused` with a reason, or `problem`.
async function load() {
  try {
    const asked = ["overview", "chains", "ops"].map((name) => read("/api/v1/" + name));
    const found = await Promise.all(asked);
    const [overview, { chains }, ops] = found.map((each) => each.answer);
    return { node: found[0].node, overview, chains, ops, at: Date.now() / 1000 };
  } catch (problem) {
    if (problem instanceof Refused) return { refused: problem.message };
    return { problem: problem instanceof TypeError ? "the node does not answer" : problem.message };
  }
}

// The newest trace, which stays while a later one cannot be had, and what went wrong last.
function useTrace() {
  const [shown, setShown] = useState(null), [last, setLast] = useState({});
  const [round, again] = useState(0);
  useEffect(() => {
    let timer, isOver = false;
    const refresh = async () => {
      clearTimeout(timer);
      const began = Date.now(), found = await load();
      if (isOver) return;
      setLast(found);
      if (found.node) setShown(found);
      clearTimeout(timer);
      if (document.hidden || found.refused !== undefined) return;
      timer = setTimeout(refresh, Math.max(REFRESH_MS, SHARE * (Date.now() - began)));
    };
    const seen = () => { if (!document.hidden) refresh(); };
    document.addEventListener("visibilitychange", seen);
    refresh();
    return () => {
      isOver = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [round]);
  return { shown, refused: last.refused, problem: last.problem, again: () => again(round + 1) };
}

function App() {
  const trace = useTrace(), { shown, problem } = trace;
  useTitle(shown?.node ?? SOME_NODE);
  return html`<a class="skip" href="#main">Skip to the content</a>
    ${problem && shown && html`<div class="banner" role="alert">
      What you see is old: ${problem}. The page goes on by itself.</div>`}
    <header><div class="bar"><a class="brand" href="/">Ingero node</a><span>${shown?.node}</span>
      <span class="right">${shown && html`<span>as of ${clock(shown.at)}</span>`}
        <${ForgetToken} /></span></div></header>
    <main id="main" tabindex="-1"><${Screen} ...${trace} /></main>`;
}

function Screen({ shown, refused, problem, again }) {
  if (refused !== undefined) return html`<${Login} title="This node wants a token" again=${again}
    text=${refused || "Enter the token of this node. It is kept for this tab only."} />`;
  if (shown) return html`<${Trace} ...${shown} />`;
  if (problem) return html`<h1>Cannot show the trace</h1><p role="alert">${problem}</p>`;
  return html`<h1>Ingero node</h1><p class="dim">reading the trace …</p>`;
}

function Trace({ node, overview, chains, ops, at }) {
  if (!overview.event_count && !overview.session_count) {
    return html`<${Sentence} kind="not_sure" text=${`Nothing was recorded on ${node} yet.`}>
        <p>Run <code>sudo ingero trace</code> on this node.</p></${Sentence}>
      <${System} overview=${overview} />`;
  }
  const rank = (chain) => SEVERITIES.indexOf(chain.severity);
  const worse = (a, b) => rank(a) - rank(b) || seconds(b.detected_at) - seconds(a.detected_at);
  const sorted = [...chains].sort(worse), more = overview.chain_count - MOST_CHAINS;
  return html`<${Finding} node=${node} worst=${sorted[0]} at=${at}
      isEmpty=${!overview.event_count} />
    ${overview.recorded_until && html`<p class="dim">
      no recorder is running: recorded until ${clock(seconds(overview.recorded_until))}</p>`}
    <${System} overview=${overview} />
    <h2>Causal chains</h2>
    ${sorted.slice(0, MOST_CHAINS).map((chain) =>
      html`<${Chain} key=${chain.id} chain=${chain} at=${at} />`)}
    ${!sorted.length && html`<p class="dim">No chains.</p>`}
    ${more > 0 && html`<p class="dim small">
      and ${count(more)} more: <code>ingero explain --since 1d</code></p>`}
    <h2>Operations</h2><${Operations} ops=${ops} />`;
}

function Finding({ node, worst, at, isEmpty }) {
  const calm = `Nothing on ${node} was slow with a known cause.`;
  const unsure = `The recorder on ${node} has seen no call of a traced process yet.`;
  if (!worst) return html`<${Sentence} kind=${isEmpty ? "not_sure" : "calm"}
    text=${isEmpty ? unsure : calm} />`;
  const kind = TONES[worst.severity] === "slow" ? "slow" : "suspect";
  const age = span(at - seconds(worst.detected_at)), [next] = worst.recommendations ?? [];
  return html`<${Sentence} kind=${kind} text=${`${node}: ${worst.summary}`}>
    <p class="dim">${age} ago${next && html` · next: ${said(next)}`}</p>
  </${Sentence}>`;
}

function Chain({ chain, at }) {
  const when = seconds(chain.detected_at), advice = chain.recommendations ?? [];
  return html`<article class="chain">
    <h3><${Badge} state=${TONES[chain.severity] ?? "learning"}>${chain.severity}</${Badge}>
      ${" " + chain.summary}</h3>
    <p>${chain.explanation}</p>
    ${advice.length > 0 && html`<ul>${advice.map((line) => html`<li>${said(line)}</li>`)}</ul>`}
    <p class="dim small">${clock(when)}, ${span(at - when)} ago</p></article>`;
}

function System({ overview: { event_count, chain_count, session_count, system: now, gpu } }) {
  const share = (value) => value == null ? MISSING : number(value, 0) + "%";
  return html`<${Facts} items=${[
    ["events", count(event_count)],
    ["chains", count(chain_count), chain_count > 0],
    ["recordings", count(session_count)],
    now && ["CPU", share(now.cpu_percent)],
    now && ["memory", share(now.mem_percent)],
    now && ["load", number(now.load_avg)],
    gpu && ["GPU", gpu.model],
    gpu?.driver_version && ["driver", gpu.driver_version],
  ]} />`;
}

function Operations({ ops: { ops, mode } }) {
  if (!ops?.length) return html`<p class="dim">No operations were recorded.</p>`;
  const columns = mode === "aggregate" ? ["avg_us", "min_us", "max_us"]
    : ["p50_us", "p95_us", "p99_us"];
  const title = (name) => name.replace("_us", " µs");
  const titles = columns.map((name) => "#" + title(name));
  return html`<div class="wide"><table class="stack">
    <${Columns} names=${["operation", "layer", "#count", ...titles]} />
    <tbody>${ops.map((op) => html`<tr key=${op.source + op.operation}>
      <th scope="row">${op.operation}</th>
      <td data-label="layer">${op.source}</td>
      <td class="n" data-label="count">${count(op.count)}</td>
      ${columns.map((name) => html`<td class="n" data-label=${title(name)}>
        ${op[name] == null ? MISSING : count(Math.round(op[name]))}</td>`)}
    </tr>`)}</tbody></table></div>`;
}

render(html`<${App} />`, document.getElementById("app"));
