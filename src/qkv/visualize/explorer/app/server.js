// Served mode: an input box whose answers come from the server, with ablated heads and masked tokens.

import { button, element } from "./dom.js";

const WAIT = 400; // milliseconds after the last key

/** Fill the form; `replace(payload)` shows the answer of the server. */
export function serverForm(form, payload, state, replace) {
  const { endpoint, models } = payload.server;
  const model = element("select", "", { ariaLabel: "Model", id: "server-model" });
  model.append(...models.map(name => element("option", name, { value: name })));
  const input = element("textarea", "", { rows: 2, id: "server-input", ariaLabel: "Input", placeholder: "Type an input", dir: "auto" });
  const status = element("p", "", { className: "note", id: "server-status", ariaLive: "polite" });
  form.replaceChildren(model, input, button("Show attention", () => send(), { id: "server-send" }), status);
  form.hidden = false;
  let timer = 0, last = 0;

  async function send() {
    clearTimeout(timer);
    if (!input.value.trim()) return;
    const number = ++last;
    status.textContent = "…";
    const options = { ablate: state.ablate ?? [], mask: state.mask ?? [], layer: state.layer || null };
    const body = JSON.stringify({ model: model.value, input: input.value, options });
    try {
      const response = await fetch(endpoint, { method: "POST", headers: { "Content-Type": "application/json" }, body });
      const answer = await response.json();
      if (number !== last) return; // a later request is under way
      if (!response.ok) throw new Error(answer.error?.message ?? answer.detail ?? `status ${response.status}`);
      status.textContent = "";
      replace(answer);
    } catch (error) {
      if (number === last) status.textContent = `The server did not answer: ${error.message}`;
    }
  }
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(send, WAIT); });
  model.addEventListener("change", send);
  return { send };
}
