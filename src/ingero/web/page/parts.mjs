// What every screen uses: markup as text, badges, facts, buttons, the headline, the token field.
import { h } from "./preact.mjs";
import { useEffect, useState } from "./hooks.mjs";
import htm from "./htm.mjs";
import { WORDS, link, span } from "./format.mjs";
import { getToken, setToken } from "./token.mjs";

export const html = htm.bind(h);

export const Badge = ({ state, children }) =>
  html`<span class=${"badge " + state}>${children ?? WORDS[state] ?? state}</span>`;

// Items are [name, value, whether it is alarming]; an item that is false is left out.
export const Facts = ({ items }) => html`<dl class="facts">
  ${items.filter(Boolean).map(([name, value, alert]) =>
    html`<div class=${alert ? "alert" : ""}><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;

// Column titles; those of numbers begin with "#" and stand above the right edge.
export const Columns = ({ names }) => html`<thead><tr>${names.map((name) =>
  html`<th scope="col" class=${name[0] === "#" ? "n" : ""}>
    ${name === "" ? html`<span class="skip">actions</span>` : name.replace("#", "")}
  </th>`)}</tr></thead>`;

// Text in which commands stand between backquotes.
export const said = (text) =>
  text.split("`").map((part, i) => i % 2 ? html`<code>${part}</code>` : part);

export function Copy({ text, label }) {
  const [done, say] = useState("");
  const copy = async () => {
    try {
      if (navigator.clipboard) await navigator.clipboard.writeText(text); else copyOld(text);
      say("copied");
    } catch { say("cannot copy"); }
    setTimeout(() => say(""), 2000);
  };
  return html`<button type="button" onClick=${copy} title=${text}>${done || label}</button>`;
}

function copyOld(text) {  // pages that came over plain HTTP have no clipboard
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

// Let the browser save a file that was made here.
export function saveFile(parts, type, name) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob(parts, { type }));
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
}

export const Sentence = ({ kind, text, children }) =>
  html`<div role="status" class=${"headline " + kind}><h1>${text}</h1>${children}</div>`;

export function Headline({ view, more }) {
  const line = view.summary.headline, title = more ? "h2" : "h1";
  const parts = [
    line.since != null && `for ${span(view.at - line.since)}`,
    line.next_step && html`next: ${said(line.next_step)}`,
    line.episode && html`<a href=${link("episode", line.episode, view.cluster_id)}>why</a>`,
  ].filter(Boolean);
  return html`<div class=${"headline " + line.kind + (more ? " more" : "")} role="status">
    <${title}>${line.text}</${title}>
    <p class="dim">${parts.map((part, i) => html`${i ? " · " : ""}${part}`)}</p>
  </div>`;
}

// The token field; `again` tries once more with what was entered.
export function Login({ title, text, again }) {
  const enter = (event) => {
    event.preventDefault();
    setToken(new FormData(event.target).get("token").trim());
    again();
  };
  return html`<div class="login"><h1>${title}</h1><p role="status">${text}</p>
    <form onSubmit=${enter}>
      <input name="token" type="password" aria-label="token" autocomplete="off"
        required autofocus />
      <button class="main">Open</button>
    </form></div>`;
}

export function ForgetToken() {
  const forget = () => { setToken(""); location.reload(); };
  return getToken() && html`<button type="button" onClick=${forget}>forget token</button>`;
}

export const isPlainClick = (event) =>
  !(event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey);

export function useTitle(title) {
  useEffect(() => { document.title = title + " – Ingero"; }, [title]);
}

// Load something now and every few seconds, until the screen or what it asks for changes.
export function useAnswer(load, everyMs, what) {
  const [answer, setAnswer] = useState(null);
  useEffect(() => {
    let isOver = false;
    const again = async () => {
      const found = await load();
      if (!isOver) setAnswer(found);
    };
    again();
    const timer = setInterval(again, everyMs);
    return () => { isOver = true; clearInterval(timer); };
  }, what);
  return answer;
}
