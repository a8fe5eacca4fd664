// The dialog that silences a node, and the button that lifts a silence.
import { useRef, useState } from "./hooks.mjs";
import { html } from "./parts.mjs";
import { ask } from "./token.mjs";

const SPANS = [[3600, "1 hour"], [14400, "4 hours"], [86400, "1 day"], [604800, "1 week"]];
const USUAL_S = 14400;

export function Silence({ target, cluster }) {
  const dialog = useRef(), why = useRef(), [problem, setProblem] = useState("");
  const open = () => { dialog.current.showModal(); why.current.focus(); };
  const close = () => dialog.current.close();
  const send = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const body = { target, cluster, for_s: Number(form.get("for")), why: form.get("why") };
    const reply = await ask("/api/v1/silences", body);
    setProblem(reply.error || "");
    if (!reply.error) close();
  };
  return html`<button type="button" onClick=${open}>silence</button>
    <dialog ref=${dialog} aria-label=${"Silence " + target}>
      <form onSubmit=${send}>
        <h3>Silence ${target}</h3>
        <p class="dim small">It is still measured and shown, but causes no alerts.</p>
        <label>How long<select name="for">${SPANS.map(([seconds, text]) =>
          html`<option value=${seconds} selected=${seconds === USUAL_S}>${text}</option>`)}
        </select></label>
        <label>Why<input name="why" ref=${why} required maxlength="500"
          placeholder="GPU is being replaced" autocomplete="off" /></label>
        ${problem && html`<p role="alert" class="bigger">${problem}</p>`}
        <div class="buttons">
          <button class="main">Silence</button>
          <button type="button" onClick=${close}>Cancel</button>
        </div>
      </form>
    </dialog>`;
}

function Lift({ silence }) {
  const [problem, setProblem] = useState("");
  const lift = async () => {
    const where = silence.cluster ? { cluster: silence.cluster } : {};
    const reply = await ask("/api/v1/silences/lift", { target: silence.target, ...where });
    setProblem(reply.error || "");
  };
  return html`<button type="button" onClick=${lift}>lift</button>
    ${problem && html`<span role="alert"> ${problem}</span>`}`;
}

export function Silences({ silences }) {
  const until = (each) => new Date(each.until * 1000).toLocaleString("en-GB");
  return silences.length > 0 && html`<h3>Silences</h3>
    <ul>${silences.map((each) => html`<li key=${each.target}>
      ${each.target} until ${until(each)}: ${each.why} <${Lift} silence=${each} />
    </li>`)}</ul>`;
}
