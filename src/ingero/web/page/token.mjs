// The token of this tab: kept in sessionStorage, sent as a header, never part of a URL.
const KEY = "ingero-token";

export const getToken = () => sessionStorage.getItem(KEY) || "";
export const setToken = (token) =>
  token ? sessionStorage.setItem(KEY, token) : sessionStorage.removeItem(KEY);
export const headers = () => getToken() ? { Authorization: "Bearer " + getToken() } : {};

// Ask the API: the answer, or an object with `error` and `status`.
export async function ask(path, body) {
  const asked = { headers: headers(), cache: "no-store" };
  if (body !== undefined) {
    asked.method = "POST";
    asked.body = JSON.stringify(body);
    asked.headers["Content-Type"] = "application/json";
  }
  try {
    const reply = await fetch(path, asked);
    const answer = await reply.json().catch(() => ({}));
    if (reply.ok) return answer;
    const { message = answer.error, choices } = answer.error ?? {}, { status } = reply;
    return { error: message || `the answer had status ${status}`, choices, status };
  } catch {
    return { error: "the service does not answer", status: 0 };
  }
}
