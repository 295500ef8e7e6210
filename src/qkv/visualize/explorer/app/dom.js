// Elements and groups of options. Data is inserted as text (textContent), never as markup.

export const byId = id => document.getElementById(id);

/** Create an element with text and properties; children are appended. */
export function element(tag, text = "", properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), { textContent: text }, properties);
  node.append(...children);
  return node;
}

/** A quoted text that does not change the direction of its surroundings. */
export const quotation = text => element("b", "", {}, "“", element("bdi", text), "”");

/** Create an option of a listbox. */
export function option(index, ...children) {
  const node = element("div", "", { role: "option", tabIndex: -1 }, ...children);
  node.dataset.index = index;
  return node;
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/**
 * Make a group a listbox: one tab stop; arrows, Home and End move the focus within it.
 * `chosen(index)` is called for a click, Enter and the space bar, `pointed(index)` for hover and focus.
 */
export function listbox(group, { chosen, pointed }) {
  const listen = (name, handler) => group.addEventListener(name, event => {
    const target = event.target.closest("[role=option]");
    if (target) handler?.(Number(target.dataset.index));
  });
  listen("click", chosen);
  for (const name of ["pointerover", "focusin"]) listen(name, pointed);
  group.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return event.target.closest("[role=option]")?.click();
    }
    const options = [...group.querySelectorAll("[role=option]")].filter(child => !child.hidden);
    const at = options.indexOf(document.activeElement), last = options.length - 1;
    const to = event.key in STEPS ? at + STEPS[event.key] : { Home: 0, End: last }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    options[to]?.focus();
  });
}

/** Mark the option with this index as selected, and make it the tab stop of its group. */
export function mark(group, chosen) {
  const options = [...group.querySelectorAll("[role=option]")];
  const stop = options.some(child => Number(child.dataset.index) === chosen) ? chosen
    : Number(options[0]?.dataset.index);
  for (const child of options) {
    const index = Number(child.dataset.index);
    child.ariaSelected = String(index === chosen);
    child.tabIndex = index === stop ? 0 : -1;
  }
}

/** a labeled select element; `choices` are [value, text] pairs. */
export function select(label, choices, value, choose) {
  const control = element("select", "", { ariaLabel: label });
  control.append(...choices.map(([key, text]) => element("option", text, { value: key })));
  control.value = value;
  control.addEventListener("change", () => choose(control.value));
  return element("label", "", { className: "control" }, element("span", label), control);
}

/** A button. */
export function button(text, click, properties = {}) {
  const node = element("button", text, { type: "button", ...properties });
  node.addEventListener("click", click);
  return node;
}
