// Requests to the server.

// A server that takes longer has given no answer.
const PATIENCE_MS = 10_000;

// Sends a GET, or a POST with a body. Returns {answer}, the JSON of the server, or {error}: words
// for the operator. The answer of a proxy may be no JSON.
export async function fromServer(path, body) {
  let response;
  let answer;
  try {
    response = await fetch(path, {
      signal: AbortSignal.timeout(PATIENCE_MS),
      ...(body && {method: 'POST', headers: {'content-type': 'application/json'},
                   body: JSON.stringify(body)})});
    answer = await response.json();
  } catch {
    // There is no answer, or none of the console.
  }
  if (response?.ok && answer) return {answer};
  return {error: answer?.error ?? (response ? `The answer had the status ${response.status}.`
    : 'The server did not answer.')};
}
