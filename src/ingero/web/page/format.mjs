// Values as text: shares, money, times, names, and the address of every view.
const HOUR = 3600;
export const DAY = 24 * HOUR;
export const MISSING = "–";  // the agent did not report it, which is not zero
const MINUS = "−", FIXED = "\u00a0";  // a space at which no line is broken

const signed = (text) => text.replace(/^-(?=[0.]+$)/, "").replace("-", MINUS);

export const number = (value, digits = 2) =>
  value == null ? MISSING : signed(value.toFixed(digits));
export const percent = (value, digits = 1) =>
  value == null ? MISSING : number(100 * value, digits) + "%";
export function change(share, digits = 0) {
  const text = percent(share, digits);
  return share > 0 && /[1-9]/.test(text) ? "+" + text : text;
}
export const count = (value) => value.toLocaleString("en");
export const many = (size, noun) => `${count(size)} ${noun}${size === 1 ? "" : "s"}`;
export const dollars = (value) =>
  "$" + value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

// Three digits that count, so that a column of such numbers can be compared.
export const digits = (value) =>
  value == null ? MISSING
    : signed(Math.abs(value) >= 100 ? value.toFixed(0) : value === 0 ? "0" : value.toPrecision(3));

export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 120) return Math.round(s) + FIXED + "s";
  if (s < 2 * HOUR) return Math.round(s / 60) + FIXED + "min";
  return s < 2 * DAY ? (s / HOUR).toFixed(1) + FIXED + "h" : Math.round(s / DAY) + FIXED + "days";
}

export function clock(at) {
  const parts = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" };
  return new Date(at * 1000).toLocaleString("en-GB", { ...parts, second: "2-digit" });
}

export function lossOf(verdict) {
  if (verdict.state === "late") return "nothing";
  if (verdict.loss == null) return MISSING;
  if (verdict.at_most) return "≤ " + percent(verdict.loss);
  const error = verdict.loss_error == null ? "" : " ±" + percent(verdict.loss_error);
  return percent(verdict.loss) + error;
}

export function priceOf(verdict) {
  if (verdict.usd_per_hour == null) return MISSING;
  return (verdict.at_most ? "≤ " : "") + dollars(verdict.usd_per_hour) + "/h";
}

export const who = (v) =>
  v.rank != null && v.node ? `rank ${v.rank} on ${v.node}` : v.node || v.shared || "the whole job";
export const capital = (sentence) => sentence.replace(/^(rank|the) /, (word) =>
  word[0].toUpperCase() + word.slice(1));

export const WORDS = { straggler: "slow", fleet_event: "all slow", not_sure: "not sure" };
export const ORDER =
  ["straggler", "fleet_event", "not_sure", "suspect", "recovering", "late", "resolved"];

// One URL per view; the cluster is a parameter because ids may repeat between clusters.
export function link(kind, id, cluster) {
  const query = cluster ? "?cluster_id=" + encodeURIComponent(cluster) : "";
  const path = kind ? "/" + kind + (id == null ? "" : "/" + encodeURIComponent(id)) : "/";
  return path + query;
}

// The command in a next step stands between backquotes.
export function commandOf(verdict) {
  const found = /`([^`]+)`/.exec(verdict.next || "");
  return found ? found[1] : `ingero replay ${verdict.episode} --fleet ${location.origin}`;
}
