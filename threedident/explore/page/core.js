// What all parts of the page share: the state, requests to the server, and how elements are built.

/** The state of the page. Change it by setValues and setScene alone. */
export const state = { facts: null, scene: null, values: [], generator: null };

const listeners = new Map();

/** Call a listener at each event of a name: "values", "scene", "panel", "moved". */
export function on(event, listener) {
  if (!listeners.has(event)) listeners.set(event, []);
  listeners.get(event).push(listener);
}

/** Tell the listeners of an event. */
export function emit(event, detail) {
  for (const listener of listeners.get(event) ?? []) listener(detail);
}

/** Move the sliders. `moving` says that more is to come, as while one is dragged. */
export function setValues(values, { moving = false } = {}) {
  state.values = state.scene.controls.map((control, i) => {
    if (control.held) return control.start;
    const whole = control.kind === "discrete" || control.kind === "step";
    const value = whole ? Math.round(values[i]) : values[i];
    return Math.min(control.high, Math.max(control.low, value));
  });
  emit("values", { moving });
}

let scenes = 0; // that were asked for

/** Show another generator; the sliders keep the values of factors that both have. */
export async function setScene(generator, values) {
  scenes += 1;
  const number = scenes;
  const scene = await ask("scene", { generator }, { slot: "generator" });
  if (scene !== null && number === scenes) showScene(scene, values);
}

/** Show a scene that the server has described. */
export function showScene(scene, values) {
  const controls = state.scene?.controls ?? [];
  const before = new Map(controls.map((c, i) => [c.name, c.held ? undefined : state.values[i]]));
  state.scene = scene;
  state.generator = scene.generator;
  state.values = [];
  emit("scene", scene);
  setValues(values ?? scene.controls.map((c) => before.get(c.name) ?? c.start));
}

/** The scene and its values, as requests name them. */
export function point() {
  return { generator: state.generator, values: state.values };
}

// A name of this tab, so that two tabs do not take each other's place on the server.
const tab = Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join("");

let token = "";

/**
 * Take the token out of the address, where histories and screenshots would keep it. Returns whether
 * it was there: otherwise the page was loaded again.
 */
export async function enter() {
  const given = new URLSearchParams(location.search);
  token = given.get("token") ?? sessionStorage.getItem("token") ?? "";
  if (given.has("once")) {
    const answer = await ask("token", { once: given.get("once") }).catch((error) => {
      if (!token) throw error; // else this tab has it already, as after a reload
      return { token };
    });
    token = answer.token;
  }
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
  return given.has("token") || given.has("once");
}

/**
 * Ask the server. Returns what its JSON says, or a Blob; null where a newer request of the same
 * slot has come. Throws an Error with the server's sentence.
 */
export async function ask(name, body = {}, { slot } = {}) {
  let answer;
  try {
    answer = await fetch(`api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `token ${token}` },
      body: JSON.stringify(slot ? { ...body, tab, slot } : body),
    });
  } catch {
    throw new Error("the server does not answer: is `3dident explore` still running?");
  }
  if (answer.status === 409) return null;
  const json = answer.headers.get("content-type")?.startsWith("application/json");
  if (answer.ok) return json ? answer.json() : answer.blob();
  const said = json ? (await answer.json()).error : "";
  throw new Error(said || `the server answered ${answer.status}`);
}

/** A function that never runs twice at once, and runs last with the last arguments. */
export function latest(run) {
  let busy = false;
  let next = null;
  return async function last(...args) {
    next = args;
    if (busy) return;
    busy = true;
    let failure = null;
    while (next !== null) {
      const now = next;
      next = null;
      failure = null;
      try {
        await run(...now);
      } catch (error) {
        failure = error; // the last arguments have their turn all the same
      }
    }
    busy = false;
    if (failure !== null) throw failure;
  };
}

/** A function that waits until it has not been called for some milliseconds. */
export function debounce(run, wait = 150) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...args), wait);
  };
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Build an element; attributes that begin with `on` are listeners, children texts or elements. */
export function el(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** Build an element of an SVG picture. */
export function svg(tag, attributes, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Show a blob in an image, and free the last one. */
export function showBlob(img, blob) {
  const before = img.dataset.blob;
  img.dataset.blob = URL.createObjectURL(blob);
  img.src = img.dataset.blob;
  if (before) URL.revokeObjectURL(before);
}

/** Free the blobs of images that are taken off the page. */
export function freeBlobs(root) {
  for (const img of root.querySelectorAll("img[data-blob]")) URL.revokeObjectURL(img.dataset.blob);
}

/** Write an error into a part of the page, where screen readers notice it. */
export function showError(root, error) {
  let line = root.querySelector(":scope > .error");
  if (!line) {
    line = el("p", { class: "error", role: "alert" });
    root.prepend(line);
  }
  line.textContent = error.message ?? String(error);
  line.hidden = false;
}

/** Take the error away. */
export function clearError(root) {
  const line = root.querySelector(":scope > .error");
  if (line) line.hidden = true;
}

/** A number with so many digits as the eye can use. */
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

// Panels: tabs on the right, of which one is shown.

const panels = new Map();
let shown = null;

/**
 * Add a tab, behind the one named `after`, if any. `start(root)` is called when it is first shown,
 * `show(root)` each time.
 */
export function panel({ id, title, start, show, after }) {
  const root = el("section", {
    id: `panel-${id}`, class: "panel", role: "tabpanel", "aria-labelledby": `tab-${id}`, hidden: true,
  });
  const button = el("button", {
    type: "button", id: `tab-${id}`, role: "tab", "aria-controls": `panel-${id}`,
    "aria-selected": "false", tabindex: "-1", onclick: () => choosePanel(id),
  }, title);
  const before = panels.get(after)?.button;
  if (before) before.after(button);
  else document.getElementById("tabs").append(button);
  document.getElementById("panels").append(root);
  panels.set(id, { id, root, button, start, show, begun: false });
  if (shown === null) showPanel(id);
}

/** Take a tab away. */
export function removePanel(id) {
  const old = panels.get(id);
  if (!old) return;
  freeBlobs(old.root);
  old.root.remove();
  old.button.remove();
  panels.delete(id);
  if (shown === id) {
    shown = null;
    const first = panels.keys().next();
    if (!first.done) showPanel(first.value);
  }
}

/** Whether a panel is the one that is shown. */
export function isShown(id) {
  return shown === id;
}

/** Show a panel and, where it lies below the sliders, go there. */
function choosePanel(id) {
  showPanel(id);
  if (matchMedia("(max-width: 800px)").matches) panels.get(id).root.scrollIntoView();
}

/** Show a panel. */
export function showPanel(id) {
  const now = panels.get(id);
  if (!now || shown === id) return;
  shown = id;
  for (const each of panels.values()) {
    const chosen = each === now;
    each.root.hidden = !chosen;
    each.button.setAttribute("aria-selected", String(chosen));
    each.button.tabIndex = chosen ? 0 : -1;
  }
  if (!now.begun) {
    now.begun = true;
    now.start(now.root);
  }
  now.show?.(now.root);
  emit("panel", id);
}

/** Arrow keys, Home and End move between tabs. */
export function movePanel(event) {
  // In the order in which they are seen.
  const ids = [...document.getElementById("tabs").children].map((tab) => tab.id.slice("tab-".length));
  const here = ids.indexOf(shown);
  const to = {
    ArrowRight: (here + 1) % ids.length,
    ArrowLeft: (here + ids.length - 1) % ids.length,
    Home: 0,
    End: ids.length - 1,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  showPanel(ids[to]);
  panels.get(ids[to]).button.focus();
}
