// What is true at this point: values, the best R2 of each factor, and what the image hides here.

import { ask, clearError, debounce, el, isShown, latest, number, on, panel, point, showError, state, svg }
  from "./core.js";
import { inScene } from "./scene.js";

// Less than this share of the strongest direction is called nearly invisible, and the page says so.
const NEARLY = 0.05;
let root = null;
let measured = null;

/** Add the panel. */
export function startHere() {
  panel({ id: "here", title: "Here", start, show: refresh });
  on("scene", () => { measured = null; });
  on("values", () => {
    if (!isShown("here") || !root) return;
    refresh();
  });
}

function start(panelRoot) {
  root = panelRoot;
  root.append(
    el("h2", {}, "What the image hides here"),
    el("p", { class: "faint" },
      "The Jacobian says how the image changes when a factor moves a little. Its smallest singular values ",
      "belong to the directions of the factors in which the image changes least."),
    el("div", { id: "hidden", "aria-live": "polite" }),
    el("h2", {}, "The factors"),
    el("table", { id: "factors" }),
    el("p", { class: "faint" },
      "The best possible R2 is for images of uniform factors; – where it is not known, or there is none. At the ",
      "edge of a hue's flat part, the change is the mean of both sides."),
  );
}

function refresh() {
  showTable();
  root.querySelector("#hidden").classList.toggle("stale", !isFresh());
  later();
}

/** Whether what is measured is of the sliders' point, and not of one before. */
function isFresh() {
  return measured !== null && measured.at === JSON.stringify(point());
}

const later = debounce(() => measure(), 250);
const measure = latest(async () => {
  if (!isShown("here")) return;
  const box = root.querySelector("#hidden");
  if (state.scene.kind === "stored") {
    measured = null;
    box.classList.remove("stale");
    box.replaceChildren(el("p", {}, "These images are stored ones: there are none in between, so there is no Jacobian."));
    return;
  }
  const now = point();
  const at = JSON.stringify(now);
  try {
    const answer = await ask("jacobian", now, { slot: "jacobian" });
    if (answer === null || at !== JSON.stringify(point())) return; // the sliders have moved on
    measured = { ...answer, at };
    clearError(root);
    showHidden(box);
    showTable();
  } catch (error) {
    showError(root, error);
  }
});

/** A direction in words: the factors that make most of it, with their shares. */
function inWords(direction, factors) {
  const order = direction.map((share, i) => [Math.abs(share), share, factors[i]]).sort((a, b) => b[0] - a[0]);
  const kept = order.filter(([size]) => size >= 0.3).slice(0, 3);
  return kept.map(([, share, name]) => `${name} ${share >= 0 ? "+" : "−"}${Math.abs(share).toFixed(2)}`).join(", ");
}

/** What a direction is about: one factor, or a mix. */
function subjectOf(direction, factors) {
  const sizes = direction.map(Math.abs);
  const first = sizes.indexOf(Math.max(...sizes));
  return sizes[first] > 0.9 ? factors[first] : `a mix of factors (${inWords(direction, factors)})`;
}

function labels() {
  return new Map(state.scene.controls.map((control) => [control.name, control.label]));
}

function showHidden(box) {
  const names = labels();
  const factors = measured.factors.map((name) => names.get(name) ?? name);
  const { singular_values: values, directions } = measured;
  box.classList.remove("stale");
  if (!values.length) {
    box.replaceChildren(el("p", {}, "No factor can move."));
    return;
  }
  const largest = values[0];
  const last = values.length - 1;
  const share = largest > 0 ? values[last] / largest : 0;
  const subject = subjectOf(directions[last], factors);
  let sentence = `Every direction shows: the weakest, ${subject}, has ${(100 * share).toFixed(0)} % of the strongest.`;
  if (values[last] <= 1e-6 * largest) sentence = `Here ${subject} is invisible: the image does not change with it.`;
  else if (share < NEARLY) sentence = `Here ${subject} is nearly invisible: ${(100 * share).toFixed(1)} % of the strongest direction.`;
  const rows = values.map((value, i) => el("tr", {},
    el("td", {}, number(value)),
    el("td", {}, bar(largest > 0 ? value / largest : 0)),
    el("td", { class: "words" }, inWords(directions[i], factors)),
  )).reverse();
  const weak = directions.filter((_, i) => i < last && values[i] < NEARLY * largest).reverse();
  const others = weak.length
    ? ` Below ${100 * NEARLY} % as well: ${weak.map((each) => subjectOf(each, factors)).join("; ")}.` : "";
  box.replaceChildren(
    el("p", { class: "finding", id: "finding" }, sentence + others),
    el("table", { class: "singular" },
      el("caption", { class: "faint" }, "Singular values, the smallest first, and what moves in each direction"),
      el("tbody", {}, rows)),
    el("p", { class: "faint" },
      `Of images of ${measured.side} x ${measured.side} in linear light (${measured.rendered} x ${measured.rendered} at `,
      "standard quality, averaged), by central differences; ",
      `per half of each range. "Nearly invisible" is less than ${100 * NEARLY} % of the strongest direction.`),
  );
}

function bar(share) {
  return svg("svg", { viewBox: "0 0 100 8", class: "share", role: "img", "aria-label": `${(100 * share).toFixed(1)} % of the largest`, preserveAspectRatio: "none" },
    svg("rect", { x: 0, y: 0, width: 100, height: 8, class: "wash" }),
    svg("rect", { x: 0, y: 0, width: Math.max(0.5, 100 * share), height: 8, class: "accent" }));
}

/** Where a value lies, as far as the flat part of its hue is concerned. */
function whereFlat(control, value) {
  const step = measured?.step ?? 0; // as far as the Jacobian looks to both sides
  if (control.flat.some(([low, high]) => Math.abs(value - low) < step || Math.abs(value - high) < step)) {
    return "at the edge of the flat part";
  }
  return control.flat.some(([low, high]) => low < value && value < high) ? "in the flat part" : "";
}

function showTable() {
  const norms = new Map((isFresh() ? measured.factors : []).map((name, i) => [name, measured.norms[i]]));
  const largest = Math.max(1e-12, ...norms.values());
  const head = ["Factor", "Value", "In the scene", "Best possible R2", "Change of the image"];
  root.querySelector("#factors").replaceChildren(
    el("thead", {}, el("tr", {}, head.map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, state.scene.controls.map((control, i) => {
      const value = state.values[i];
      const shown = control.kind === "discrete" ? control.values[value] : number(value);
      const flat = whereFlat(control, value);
      const norm = norms.get(control.name);
      return el("tr", { "data-row": control.name },
        el("th", { scope: "row" }, control.label),
        el("td", {}, shown),
        el("td", {}, [inScene(control, value), flat].filter(Boolean).join(", ")),
        el("td", {}, control.best_r2 === null ? "–" : control.best_r2.toFixed(4)),
        el("td", {}, norm === undefined ? "–" : bar(norm / largest)));
    })));
}
