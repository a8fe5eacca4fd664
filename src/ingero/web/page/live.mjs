// The live stream: snapshots and deltas of Fleet, as values that screens draw.
import { headers } from "./token.mjs";

const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 4000, KEPT_TICKS = 300;
const QUIET_MS = 3000;

export class Live {
  constructor(onChange) {
    this.onChange = onChange;
    this.clusters = new Map();
    this.ranks = null;
    this.steps = null;
    this.state = "connecting";  // then live, token or refused
    this.problem = "";
    this.at = 0;
    this.version = "";
    this.heard = performance.now();
    this.query = null;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.close();
      else if (this.query !== null) this.open(this.query, true);
    });
  }

  // One stream per tab: another query replaces it.
  open(query, again = false) {
    if (query === this.query && !again) return;
    this.close();
    this.query = query;
    this.ranks = this.steps = null;
    this.heard = performance.now();
    this.abort = new AbortController();
    this.run(query, this.abort.signal);
  }

  close() { this.abort?.abort(); }

  get isQuiet() {
    const mayHear = this.state !== "token" && this.state !== "refused";
    return mayHear && performance.now() - this.heard > QUIET_MS;
  }

  async run(query, signal) {
    let pause = FIRST_PAUSE_MS;
    while (!signal.aborted) {
      try {
        const asked = { headers: headers(), signal, cache: "no-store" };
        const reply = await fetch("/api/v1/live" + query, asked);
        if (reply.ok) {
          pause = FIRST_PAUSE_MS;
          this.problem = "";
          await this.read(reply.body, signal);
        } else if (await this.refused(reply)) return this.onChange();
      } catch { if (signal.aborted) return; }
      this.onChange();
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
    }
  }

  // Note why there is no stream; true where only another token helps.
  async refused(reply) {
    const answer = await reply.json().catch(() => ({}));
    this.problem = answer.error || `status ${reply.status}`;
    const state = { 401: "token", 403: "refused" }[reply.status];
    if (state) this.state = state;
    return Boolean(state);
  }

  async read(body, signal) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    while (!signal.aborted) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      let ticked = false;
      for (const line of lines) ticked = this.take(JSON.parse(line)) || ticked;
      this.heard = performance.now();
      if (ticked) this.onChange();
    }
  }

  // Take one message; true where a tick is complete.
  take(message) {
    const handlers = {
      snapshot: this.snapshot, delta: this.delta, tick: this.tick,
      ranks: this.takeRanks, steps: this.takeSteps,
    };
    handlers[message.type]?.call(this, message);
    return message.type === "tick";
  }

  snapshot(m) {
    const before = this.clusters.get(m.cluster_id);
    const nodes = new Map(m.nodes.map((node) => [node[0], node]));
    const episodes = new Map(m.episodes.map((each) => [each.verdict.episode, each]));
    const past = before?.past ?? [];
    this.clusters.set(m.cluster_id, { ...m, nodes, episodes, ids: [...nodes.keys()], past });
  }

  delta(m) {
    const view = this.clusters.get(m.cluster_id);
    if (!view) return;
    for (const name of ["summary", "verdicts", "silences", "jobs"]) {
      if (m[name]) view[name] = m[name];
    }
    let isNew = Boolean(m.gone);
    for (const node of m.nodes ?? []) {
      isNew ||= !view.nodes.has(node[0]);
      view.nodes.set(node[0], node);
    }
    for (const id of m.gone ?? []) view.nodes.delete(id);
    if (isNew) view.ids = [...view.nodes.keys()].sort();
    for (const each of m.episodes ?? []) view.episodes.set(each.verdict.episode, each);
    for (const id of m.episodes_gone ?? []) view.episodes.delete(id);
  }

  takeRanks(m) { this.ranks = m; }

  // Steps come with those just before them again, because some ranks report late.
  takeSteps(m) {
    const known = m.whole || !this.steps ? new Map() : this.steps.columns;
    m.steps.forEach((step, place) => known.set(step, m.values[place]));
    const numbers = [...known.keys()].sort((a, b) => a - b).slice(-KEPT_TICKS);
    const columns = new Map(numbers.map((step) => [step, known.get(step)]));
    this.steps = { ranks: m.ranks, of: m.of, columns };
  }

  tick(m) {
    this.at = m.at;
    this.version = m.version;
    this.state = "live";
    for (const name of this.clusters.keys()) {
      if (!m.clusters.includes(name)) this.clusters.delete(name);
    }
    for (const view of this.clusters.values()) {
      view.at = m.at;
      view.past.push([m.at, view.summary.threshold, view.summary.median]);
      if (view.past.length > KEPT_TICKS) view.past.shift();
    }
  }
}

// Positions in the array of a node, as contract/live.py has them.
export const NODE = {
  id: 0, score: 1, state: 2, slow: 3, seen: 4, ranks: 5, job: 6, gpu: 7, mode: 8, version: 9,
  lost: 10, offset: 11, ready: 12,
};
export const RANK = { rank: 0, node: 1, role: 2, state: 3, own: 4, excess: 5, late: 6, awaited: 7 };

// Nodes that an open verdict names; their agents may not have noticed it themselves.
export const slowNodes = (view) =>
  new Set(view.verdicts.filter((v) => v.state === "straggler").map((v) => v.node));
