// The token of this tab: kept in sessionStorage, sent as a header, never part of a URL.
const KEY = "ingero-token";

export const getToken = () => sessionStorage.getItem(KEY) || "";
export const setToken = (token) => token ? sessionStorage.setItem(KEY, token) : sessionStorage.removeItem(KEY);
export const headers = () => getToken() ? { Authorization: "Bearer " + getToken() } : {};

// Ask the API: the answer, or an object with `error` and `status`.
export async function ask(path, body) {
  const asked = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  try {
    const reply = await fetch(path, { ...asked, cache: "no-store", headers: { ...headers(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) } });
    const answer = await reply.json().catch(() => ({}));
    if (reply.ok) return answer;
    const said = answer.error?.message ?? answer.error;
    return { ...answer, error: said || `the answer had status ${reply.status}`, status: reply.status };
  } catch {
    return { error: "the service does not answer", status: 0 };
  }
}
