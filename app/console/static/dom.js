// Elements without markup: nothing that a server, a tool or a client has written is ever parsed as HTML.

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// A value that should be a text, whatever it is.
export function said(value) {
  return typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value);
}

// What has happened, for everybody: shown in the corner, and said by screen readers.
export function tell(words, kind = "told") {
  const shown = make("p", { class: kind }, words);
  document.getElementById("told").replaceChildren(shown);
  if (kind === "told") setTimeout(() => shown.remove(), 6000);
}

// Asks before something that cannot be taken back. Escape means no.
export function confirmed(words, yes = "Yes") {
  return new Promise((resolve) => {
    const dialog = make("dialog", { "aria-label": "Please confirm" });
    const no = make("button", { type: "button", class: "quiet", autofocus: true }, "No");
    const go = make("button", { type: "button", class: "danger" }, yes);
    dialog.append(make("p", {}, words), make("div", { class: "row" }, no, go));
    no.addEventListener("click", () => dialog.close());
    go.addEventListener("click", () => dialog.close("yes"));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
