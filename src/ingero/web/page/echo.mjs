// Echo's page: the history of episodes, and a form for every question.
import { render } from "./preact.mjs";
import { useEffect, useState } from "./hooks.mjs";
import { ForgetToken, Login, html, isPlainClick, useTitle } from "./parts.mjs";
import { History } from "./history.mjs";
import { Question } from "./question.mjs";
import { askAddress, shortName, toolsOf } from "./asking.mjs";
import { ask } from "./token.mjs";

const WELCOME = "Echo keeps the history of all clusters. Enter a token with the scope read. " +
  "It is kept for this tab only.";

function place() {
  const name = decodeURIComponent(location.pathname.split("/")[2] || "");
  return { name, values: Object.fromEntries(new URLSearchParams(location.search)) };
}

function App() {
  const [at, setAt] = useState(place()), [api, setApi] = useState(null);
  const load = async () => setApi(await ask("/api/v2/openapi.json"));
  const go = (url) => { history.pushState(null, "", url); setAt(place()); };
  useEffect(() => {
    load();
    addEventListener("popstate", () => setAt(place()));
    document.addEventListener("click", (event) => {
      const anchor = event.target.closest?.("a[href^='/']");
      if (!anchor || !isPlainClick(event)) return;
      event.preventDefault();
      go(anchor.getAttribute("href"));
    });
  }, []);
  return html`<a class="skip" href="#main">Skip to the content</a>
    <header><div class="bar"><a class="brand" href="/">Ingero Echo</a>
      <span class="right"><${ForgetToken} /></span></div></header>
    <main id="main" tabindex="-1"><${Screen} api=${api} at=${at} go=${go} load=${load} /></main>`;
}

function Screen({ api, at, go, load }) {
  if (!api) return html`<h1>Ingero Echo</h1><p class="dim">connecting …</p>`;
  if (api.status === 401 || api.status === 403) return html`<${Login} title="Echo wants a token"
    text=${api.status === 403 ? api.error : WELCOME} again=${load} />`;
  if (api.error) return html`<h1>Echo does not answer</h1><p role="alert">${api.error}</p>
    <button type="button" onClick=${load}>try again</button>`;
  return html`<${Questions} api=${api} at=${at} go=${go} />`;
}

function Questions({ api, at, go }) {
  const tools = toolsOf(api);
  const tool = tools.find((each) => shortName(each) === at.name || each.name === at.name);
  useTitle((tool ? tool.summary.slice(0, 60) : "History"));
  if (!tool) return html`${at.name && html`<p role="alert" class="bigger">
      There is no question “${at.name}”; those below can be asked.</p>`}
    <h1>The history of your clusters</h1><${History} tools=${tools} />`;
  return html`<h1>${tool.summary}</h1>
    <div class="asking">
      <nav aria-label="Questions"><ul>${tools.map((each) => html`<li key=${each.name}>
        <a href=${askAddress(shortName(each))} aria-current=${each === tool ? "page" : null}>
          ${shortName(each).replaceAll("_", " ")}</a></li>`)}</ul></nav>
      <div><${Question} key=${tool.name} api=${api} tool=${tool} at=${at} go=${go} /></div>
    </div>`;
}

render(html`<${App} />`, document.getElementById("app"));
