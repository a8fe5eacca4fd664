// The frame of the page: which screen a URL shows, the token field, and the banner.
import { render } from "./preact.mjs";
import { useEffect, useState } from "./hooks.mjs";
import { Login, html, link } from "./parts.mjs";
import { Live } from "./live.mjs";
import { getToken, setToken } from "./token.mjs";
import { paints } from "./draw.mjs";
import { Now } from "./now.mjs";
import { Job } from "./job.mjs";
import { Node } from "./node.mjs";
import { Episode } from "./episode.mjs";
import { Agents } from "./agents.mjs";

const SCREENS = { job: Job, node: Node, episode: Episode };

function place() {
  const [, kind, ...rest] = location.pathname.split("/");
  let id = rest.join("/");
  try { id = decodeURIComponent(id); } catch { /* a name with a lone percent sign */ }
  return { kind, id, cluster: new URLSearchParams(location.search).get("cluster_id") };
}

// The view that holds what a URL names: in its cluster, or else in the first that knows it.
function viewOf(live, { kind, id, cluster }) {
  if (cluster) return live.clusters.get(cluster);
  const knows = { job: (view) => view.jobs.some((job) => job.job_id === id), node: (view) => view.nodes.has(id), episode: (view) => view.episodes.has(id) }[kind];
  const views = [...live.clusters.values()];
  return views.find(knows) ?? views[0];
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
      if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || anchor.download || anchor.target) return;
      event.preventDefault();
      go(anchor.getAttribute("href"));
    };
    const back = () => setAt(place());
    document.addEventListener("click", click);
    addEventListener("popstate", back);
    const timer = setInterval(change, 1000);  // the banner must come while nothing else does
    return () => { document.removeEventListener("click", click); removeEventListener("popstate", back); clearInterval(timer); };
  }, []);
  useEffect(() => {
    const query = new URLSearchParams();
    if (at.cluster) query.set("cluster_id", at.cluster);
    if (at.kind === "job") query.set("job_id", at.id);
    live.open(query.size ? "?" + query : "");
  }, [at]);
  if (live.state === "token" || live.state === "refused") return html`<${Frame} at=${at}><${Login} title=${live.state === "token" ? "Fleet wants a token" : "This token is not enough"}
    text=${live.state === "token" ? "Enter a token with the scope read. It is kept for this tab only." : live.problem} again=${() => { live.state = "connecting"; live.open(live.query, true); }} /></${Frame}>`;
  return html`<${Frame} at=${at}>${live.state === "connecting" ? html`<h1>Ingero Fleet</h1><p class="dim">connecting …</p>` : html`<${Screen} at=${at} go=${go} />`}</${Frame}>`;
}

function Screen({ at, go }) {
  if (at.kind === "agents") return html`<${Agents} live=${live} cluster=${at.cluster} />`;
  const Found = SCREENS[at.kind];
  if (!Found) return html`<${Now} live=${live} cluster=${at.cluster} go=${go} />`;
  const view = viewOf(live, at) ?? (at.kind === "episode" ? { cluster_id: at.cluster ?? "", at: live.at, episodes: new Map() } : null);  // an episode outlives its cluster
  if (!view) return html`<div role="status" class="headline not_sure"><h1>No node of ${at.cluster ? "cluster " + at.cluster : "any cluster"} pushes.</h1></div>`;
  return html`<${Found} key=${location.pathname} live=${live} view=${view} id=${at.id} />`;
}

function Frame({ at, children }) {
  const tabs = [["", "Now"], ["agents", "Agents"]];
  return html`<a class="skip" href="#main">Skip to the content</a>
    ${live.isQuiet && html`<div class="banner" role="alert">Nothing was heard from Fleet for ${Math.round((performance.now() - live.heard) / 1000)} s${live.problem ? `: ${live.problem}` : ""}. What you see is old; the page goes on by itself.</div>`}
    <header><div class="bar"><a class="brand" href="/">Ingero Fleet</a>
      <nav aria-label="Screens">${tabs.map(([kind, title]) => html`<a href=${link(kind, null, at.cluster)} aria-current=${(at.kind || "") === kind ? "page" : null}>${title}</a>`)}</nav>
      <span class="right">${at.cluster && html`<span>cluster ${at.cluster} <a href="/">all</a></span>`}${live.version && html`<span>${live.version}</span>`}${getToken() && html`<button type="button" onClick=${() => { setToken(""); location.reload(); }}>forget token</button>`}</span></div></header>
    <main id="main" tabindex="-1">${children}</main>`;
}

render(html`<${App} />`, document.getElementById("app"));
