// The frame of the page: which screen a URL shows, the token field, and the banner.
import { render } from "./preact.mjs";
import { useEffect, useState } from "./hooks.mjs";
import { ForgetToken, Login, Sentence, html, isPlainClick } from "./parts.mjs";
import { link } from "./format.mjs";
import { Live } from "./live.mjs";
import { paints } from "./map.mjs";
import { Now } from "./now.mjs";
import { Job } from "./job.mjs";
import { Node } from "./node.mjs";
import { Episode } from "./episode.mjs";
import { Agents } from "./agents.mjs";

const SCREENS = { job: Job, node: Node, episode: Episode };
const TABS = [["", "Now"], ["agents", "Agents"]];
const KNOWS = {
  job: (view, id) => view.jobs.some((job) => job.job_id === id),
  node: (view, id) => view.nodes.has(id),
  episode: (view, id) => view.episodes.has(id),
};

function place() {
  const [, kind, ...rest] = location.pathname.split("/");
  let id = rest.join("/");
  try { id = decodeURIComponent(id); } catch { /* a name with a lone percent sign */ }
  return { kind, id, cluster: new URLSearchParams(location.search).get("cluster_id") };
}

// The view that holds what a URL names: in its cluster, or else in the first that knows it.
function viewOf({ kind, id, cluster }) {
  const views = [...live.clusters.values()];
  const found = cluster ? live.clusters.get(cluster)
    : views.find((view) => KNOWS[kind](view, id)) ?? views[0];
  if (found || kind !== "episode") return found;
  // an episode outlives its cluster
  return { cluster_id: cluster ?? "", at: live.at, episodes: new Map() };
}

let change = () => {};
const live = new Live(() => change());
window.ingero = { live, paints };  // for tests, and for the curious

function App() {
  const [, redraw] = useState(0), [at, setAt] = useState(place());
  const go = (url) => { history.pushState(null, "", url); setAt(place()); scrollTo(0, 0); };
  change = () => redraw((n) => n + 1);
  useEffect(() => {
    const click = (event) => {
      const anchor = event.target.closest?.("a[href^='/']");
      if (!anchor || !isPlainClick(event) || anchor.download || anchor.target) return;
      event.preventDefault();
      go(anchor.getAttribute("href"));
    };
    document.addEventListener("click", click);
    addEventListener("popstate", () => setAt(place()));
    setInterval(change, 1000);  // the banner must come while nothing else does
  }, []);
  useEffect(() => {
    const query = new URLSearchParams();
    if (at.cluster) query.set("cluster_id", at.cluster);
    if (at.kind === "job") query.set("job_id", at.id);
    live.open(query.size ? "?" + query : "");
  }, [at]);
  return html`<${Frame} at=${at}><${Screen} at=${at} go=${go} /></${Frame}>`;
}

function Screen({ at, go }) {
  const again = () => { live.state = "connecting"; live.open(live.query, true); };
  if (live.state === "token") return html`<${Login} title="Fleet wants a token" again=${again}
    text="Enter a token with the scope read. It is kept for this tab only." />`;
  if (live.state === "refused") return html`<${Login} title="This token is not enough"
    text=${live.problem} again=${again} />`;
  if (live.state === "connecting") return html`<h1>Ingero Fleet</h1>
    <p class="dim">connecting …</p>`;
  if (at.kind === "agents") return html`<${Agents} live=${live} cluster=${at.cluster} />`;
  const Found = SCREENS[at.kind];
  if (!Found) return html`<${Now} live=${live} cluster=${at.cluster} go=${go} />`;
  const view = viewOf(at), where = at.cluster ? "cluster " + at.cluster : "any cluster";
  if (!view) return html`<${Sentence} kind="not_sure" text=${`No node of ${where} pushes.`} />`;
  return html`<${Found} key=${location.pathname} live=${live} view=${view} id=${at.id} />`;
}

function Frame({ at, children }) {
  return html`<a class="skip" href="#main">Skip to the content</a>
    ${live.isQuiet && html`<${Banner} />`}
    <header><div class="bar"><a class="brand" href="/">Ingero Fleet</a>
      <nav aria-label="Screens">${TABS.map(([kind, title]) =>
        html`<a href=${link(kind, null, at.cluster)}
          aria-current=${(at.kind || "") === kind ? "page" : null}>${title}</a>`)}</nav>
      <span class="right">
        ${at.cluster && html`<span>cluster ${at.cluster} <a href="/">all</a></span>`}
        ${live.version && html`<span>${live.version}</span>`}
        <${ForgetToken} />
      </span></div></header>
    <main id="main" tabindex="-1">${children}</main>`;
}

function Banner() {
  const seconds = Math.round((performance.now() - live.heard) / 1000);
  const why = live.problem ? `: ${live.problem}` : "";
  return html`<div class="banner" role="alert">
    Nothing was heard from Fleet for ${seconds} s${why}.
    ${" What you see is old; the page goes on by itself."}
  </div>`;
}

render(html`<${App} />`, document.getElementById("app"));
