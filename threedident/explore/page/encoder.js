// The encoder: codes and factors read out of them, here and along a factor.

import {
  ask, clearError, debounce, el, isShown, latest, number, on, panel, point, showError, state, svg,
} from "./core.js";

// A factor whose R2 is less than this is not read out, and is drawn pale.
const BLIND = 0.05;
const BETWEEN = 200; // ms between two images that are encoded while a slider moves
const LOOK_EVERY = 700; // ms between two looks at how far the read-out is
const MARKED = 8; // codes that move most along a factor, which are drawn in full
const MOST_SIGMA = 3; // standard deviations that the bars of codes show
const TRAVERSAL = "encoder-traversal"; // the slot
const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

let parts = null; // the elements of the panel
let facts = null;
let here = null; // the last answer for the sliders' point
let largest = 0; // absolute code so far, where codes are not in standard deviations
let curves = null; // the last traversal, and where it was taken

/** Add the panel, if there is an encoder. */
export function startEncoder() {
  facts = state.facts.encoder;
  if (!facts) return;
  panel({ id: "encoder", title: "Encoder", start, show: refresh });
  on("scene", () => {
    here = null;
    curves = null;
    if (!parts) return;
    forScene();
    if (isShown("encoder")) queueMicrotask(refresh); // the scene's values come right after it
  });
  on("values", ({ moving }) => {
    if (!parts || !isShown("encoder")) return;
    moveLine();
    if (moving) follow();
    settle();
  });
}

function start(root) {
  parts = {
    notes: el("ul", { class: "encoder-notes faint" }),
    summary: el("p", { id: "encoder-summary" }),
    progress: el("p", { id: "encoder-progress", role: "status" }),
    readout: el("div", { id: "encoder-readout" }),
    factors: el("div", { id: "encoder-factors", class: "scroll" }),
    codes: el("div", { id: "encoder-codes" }),
    live: el("section", { "aria-label": "At the sliders' values" }),
    along: el("section", { "aria-label": "Along a factor" }),
    choice: el("select", { id: "encoder-factor" }),
    again: el("button", { type: "button", id: "encoder-again" }, "Compute again"),
    status: el("p", { id: "encoder-status", class: "faint", role: "status" }),
    curves: el("div", { id: "encoder-curves" }),
  };
  parts.live.append(
    el("h2", {}, "Factors: true and read out"), parts.readout, parts.factors,
    el("h2", {}, "Codes of this image"), parts.codes,
  );
  parts.along.append(
    el("h2", {}, "Along one factor"),
    el("p", { class: "faint" },
      "One factor goes through its range, the others stay as the sliders have them. ",
      "Each curve is a code."),
    el("p", { class: "encoder-choice" },
      el("label", { for: "encoder-factor" }, "Factor "), parts.choice, " ", parts.again),
    parts.status, parts.curves,
  );
  root.append(
    el("h2", { class: "encoder-name" }, facts.name), parts.summary, parts.progress,
    parts.live, parts.along,
    el("h2", {}, "What it is, and what it sees"), parts.notes,
  );
  parts.choice.addEventListener("change", () => { runAlong(); });
  parts.again.addEventListener("click", () => { runAlong(); });
  new ResizeObserver(debounce(redraw)).observe(root);
  forScene();
}

function forScene() {
  const before = parts.choice.value;
  const moving = state.scene.controls.filter((control) => !control.held && control.high > control.low);
  parts.choice.replaceChildren(...moving.map((c) => el("option", { value: c.name }, c.label)));
  if (moving.some((control) => control.name === before)) parts.choice.value = before;
  parts.curves.replaceChildren();
  parts.status.textContent = "";
  parts.factors.replaceChildren();
}

function refresh() {
  watch();
  settle();
  if (!curves) runAlong();
}

// How far it is

const watch = latest(async () => {
  for (;;) {
    if (!isShown("encoder")) return;
    try {
      facts = await ask("encoder");
    } catch (error) {
      showError(parts.live, error);
      return;
    }
    const before = parts.readout.dataset.state;
    showFacts();
    const { state: now } = facts.readout;
    if (before && before !== now && now === "ready") {
      settle();
      runAlong();
    }
    if (facts.state !== "loading" && now !== "waiting" && now !== "encoding") return;
    if (facts.state === "failed") return;
    await pause(LOOK_EVERY);
  }
});

const count = (value) => value.toLocaleString("en");

function showFacts() {
  const { readout } = facts;
  parts.readout.dataset.state = readout.state;
  const size = facts.size ? `, of images of ${facts.size.join(" x ")}` : "";
  parts.summary.textContent = facts.state === "loading" ? "It is being loaded."
    : facts.codes ? `${count(facts.codes)} codes${size}.` : "";
  const encoding = readout.state === "encoding";
  const share = el("progress", { max: Math.max(1, readout.total), value: readout.done });
  parts.progress.replaceChildren(...(encoding ? [
    share,
    ` encoding ${count(readout.done)} of ${count(readout.total)} images of the dataset, for the read-out`,
  ] : []));
  parts.notes.replaceChildren(...facts.notes.map((note) => el("li", {}, note)));
  const words = [];
  if (readout.state === "ready") {
    words.push(el("p", { class: "faint" },
      `The read-out is a linear regression from codes to factors, fitted on ${count(readout.fitted)} images of `,
      `the dataset. R2 is the share of a factor's variance that it predicts on ${count(readout.measured)} others: `,
      "1 is all of it; behind it stands the best that any encoder can reach, where that is known."));
  } else if (readout.state === "none") {
    words.push(el("p", {}, `${readout.why}.`));
  } else if (readout.state === "failed") {
    words.push(el("p", { class: "error" }, `There is no read-out: ${readout.why}`));
  } else {
    words.push(el("p", { class: "faint" }, "The read-out comes when the dataset's images are encoded."));
  }
  words.push(...readout.warnings.map((warning) => el("p", { class: "notice" }, warning)));
  words.push(el("p", { class: "notice", id: "encoder-differs", hidden: !here?.differs }, here?.differs ?? ""));
  parts.readout.replaceChildren(...words);
}

// At the sliders' values

const follow = latest(async () => {
  if (!isShown("encoder")) return;
  const { scene } = state;
  try {
    const answer = await ask("encoder-codes", point(), { slot: "encoder" });
    if (answer === null || scene !== state.scene) return;
    here = answer;
    clearError(parts.live);
    showHere();
  } catch (error) {
    showError(parts.live, error);
  }
  await pause(BETWEEN);
});
const settle = debounce(() => follow());

function showHere() {
  if (!facts.codes) {
    facts.codes = here.count;
    showFacts();
  }
  const differs = parts.readout.querySelector("#encoder-differs");
  if (differs) {
    differs.textContent = here.differs;
    differs.hidden = !here.differs;
  }
  showFactors();
  showCodes();
}

function share(control, value) {
  return control.high > control.low ? (value - control.low) / (control.high - control.low) : 0.5;
}

function inWords(control, value) {
  if (control.kind === "discrete") return control.values[Math.round(value)] ?? String(value);
  return value.toFixed(Math.abs(value) < 10 ? 2 : 1).replace("-", "−");
}

function track(control, factor) {
  const words = `${control.label}: true ${inWords(control, factor.true)}, read out ${inWords(control, factor.predicted)}`;
  const [from, to] = [share(control, factor.true), share(control, factor.predicted)];
  const kept = Math.min(1, Math.max(0, to));
  const gap = el("span", { class: "gap" });
  gap.style.left = `${100 * Math.min(from, kept)}%`;
  gap.style.width = `${100 * Math.abs(from - kept)}%`;
  const dot = el("span", { class: "dot" });
  dot.style.left = `${100 * from}%`;
  const ring = el("span", { class: `ring${to < 0 ? " below" : to > 1 ? " above" : ""}` });
  ring.style.left = `${100 * kept}%`;
  const line = el("div", { class: "track", role: "img", "aria-label": words, title: words });
  // The shorter way round a circle may lead over its ends.
  const apart = Math.abs(factor.predicted - factor.true);
  const around = apart - Math.abs(factor.error) > 1e-3 * apart;
  line.append(...(around ? [] : [gap]), ring, dot);
  return line;
}

function showFactors() {
  if (!here.factors.some((factor) => factor.predicted !== null)) {
    parts.factors.replaceChildren();
    return;
  }
  const rows = state.scene.controls.map((control, i) => {
    const factor = here.factors[i];
    const known = factor.predicted !== null;
    const discrete = control.kind === "discrete";
    const error = !known ? "–" : discrete ? (factor.error ? "wrong" : "right")
      : `${factor.error < 0 ? "−" : "+"}${inWords(control, Math.abs(factor.error))}`;
    const quality = factor.accuracy != null ? `${(100 * factor.accuracy).toFixed(0)} % right of ${control.values.length} classes`
      : factor.r2 == null ? "–" : factor.r2.toFixed(3).replace("-", "−");
    // The best that any encoder can reach on the dataset, which is what R2 is measured on.
    const best = factor.best_r2 == null ? null
      : el("span", { class: "faint best" }, ` of ${factor.best_r2.toFixed(3)}`);
    const blind = factor.r2 != null && factor.r2 < BLIND;
    return el("tr", { "data-row": control.name, class: blind ? "blind" : null },
      el("th", { scope: "row" }, control.label),
      el("td", { class: "wide" }, known && !discrete ? track(control, factor)
        : el("span", { class: "faint" }, known ? "" : "not read out")),
      el("td", { class: "true" }, inWords(control, factor.true)),
      el("td", {}, known ? inWords(control, factor.predicted) : "–"),
      el("td", {}, error),
      el("td", {}, quality, factor.r2 == null ? null : best));
  });
  const heads = ["Factor", "", "True", "Read out", "Error", "Held-out R2"];
  parts.factors.replaceChildren(
    el("table", { class: "encoder-table" },
      el("caption", { class: "faint" },
        el("span", { class: "dot key" }), " true  ", el("span", { class: "ring key" }),
        " read out of the codes; the line is the factor's range. Errors are in the sliders' units. Pale: an R2 ",
        `below ${BLIND}. There the ring stays near the mean, whatever the image, and is right by chance.`),
      el("thead", {}, el("tr", {}, heads.map((head, i) => (i === 1
        ? el("td", {}) : el("th", { scope: "col", class: head === "True" && "true" }, head))))),
      el("tbody", {}, rows)));
}

function showCodes() {
  const { codes, scaled, count: all } = here;
  const values = scaled ?? codes;
  largest = Math.max(largest, ...codes.map(Math.abs), 1e-9);
  const most = scaled ? MOST_SIGMA : largest;
  const [width, height] = [widthOf(parts.codes), 130];
  const [left, right] = [42, 8];
  const step = (width - left - right) / values.length;
  const thick = Math.max(1, Math.min(26, step * 0.76));
  const y = (value) => height / 2 - 10 - Math.max(-1, Math.min(1, value / most)) * (height / 2 - 16);
  const bars = values.map((value, i) => {
    const [top, bottom] = [Math.min(y(value), y(0)), Math.max(y(value), y(0))];
    const words = scaled
      ? `code ${i + 1}: ${number(codes[i])}, ${number(value)} standard deviations from the mean of the read-out's images`
      : `code ${i + 1}: ${number(codes[i])}`;
    return svg("rect", {
      class: value < 0 ? "down" : "up", x: left + (i + 0.5) * step - thick / 2, y: top,
      width: thick, height: Math.max(0.6, bottom - top),
    }, svg("title", {}, words));
  });
  const every = [1, 2, 4, 5, 8, 10].find((n) => n * step >= 18) ?? 16;
  const numbers = values.map((_, i) => i).filter((i) => (i === 0 && every > 2) || (i + 1) % every === 0).map((i) => svg("text", {
    x: left + (i + 0.5) * step, y: height - 3, class: "label middle",
  }, String(i + 1)));
  const marks = [most, 0, -most].flatMap((value) => [
    svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    svg("text", { class: "label end", x: left - 5, y: y(value) + 4 }, number(value, 2)),
  ]);
  const unit = scaled ? "standard deviations from the mean of the read-out's images" : "their own units";
  parts.codes.replaceChildren(
    svg("svg", {
      class: "encoder-chart", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `The codes of this image in ${unit}: ${values.slice(0, 12).map((v) => number(v, 2)).join(", ")}${values.length > 12 ? ", and more" : ""}`,
    }, marks, bars, numbers),
    el("p", { class: "faint" },
      all > codes.length ? `The first ${codes.length} of ${count(all)} codes, ` : `All ${count(all)} codes, `,
      `in ${unit}`,
      scaled ? `; bars end at ${MOST_SIGMA}. ` : ". ",
      "They are of an image of its own size and quality, five times a second at most while a slider moves."));
}

// Along a factor

const runAlong = latest(async () => {
  if (!isShown("encoder")) return;
  const factor = parts.choice.value;
  if (!factor) return;
  const at = { ...point(), values: [...state.values] };
  const { generator, scene } = state;
  parts.status.textContent = "Rendering and encoding.";
  parts.curves.classList.add("stale");
  let over = false;
  const tell = async () => {
    while (!over) {
      await pause(LOOK_EVERY / 2);
      if (over) return;
      try {
        const { traversal } = await ask("encoder", {}, { slot: TRAVERSAL });
        if (!over && traversal.done < traversal.total) {
          parts.status.textContent = `Rendered and encoded ${traversal.done} of ${traversal.total} images.`;
        }
      } catch {
        return;
      }
    }
  };
  tell();
  try {
    const answer = await ask("encoder-traversal", { ...at, factor }, { slot: TRAVERSAL });
    over = true;
    if (answer === null || scene !== state.scene || generator !== state.generator) return;
    curves = { ...answer, at: at.values };
    clearError(parts.along);
    parts.status.textContent = "";
    parts.curves.classList.remove("stale");
    showCurves();
  } catch (error) {
    parts.status.textContent = "";
    showError(parts.along, error);
  } finally {
    over = true;
  }
});

const PLOT = { left: 44, right: 34, top: 10, bottom: 24 };

function widthOf(box) {
  return Math.max(280, Math.min(900, Math.floor(box.clientWidth) || 600));
}

function redraw() {
  if (!parts || !isShown("encoder")) return;
  if (here) showCodes();
  if (curves) showCurves();
}

/** A picture of lines over the range of a control. */
function plot(box, control, { height, low, high, marks, name, lines, more = [] }) {
  const width = widthOf(box);
  const x = (value) => PLOT.left + share(control, value) * (width - PLOT.left - PLOT.right);
  const y = (value) => height - PLOT.bottom - ((value - low) / (high - low)) * (height - PLOT.top - PLOT.bottom);
  const grid = marks.flatMap((mark) => [
    svg("line", { class: "grid", x1: PLOT.left, x2: width - PLOT.right, y1: y(mark), y2: y(mark) }),
    svg("text", { class: "label end", x: PLOT.left - 5, y: y(mark) + 4 }, number(mark, 2)),
  ]);
  const discrete = control.kind === "discrete";
  const ticks = discrete ? control.values.map((_, i) => i)
    : [0, 0.25, 0.5, 0.75, 1].map((part) => control.low + part * (control.high - control.low));
  const below = ticks.filter((_, i) => !discrete || ticks.length <= 8 || i % Math.ceil(ticks.length / 8) === 0)
    .map((tick) => svg("text", { class: "label middle", x: x(tick), y: height - 7 },
      discrete ? control.values[tick].slice(0, 10) : number(tick, 3)));
  const labels = spread(lines.filter((line) => line.mark).map((line) => ({
    line, y: y(line.values[line.values.length - 1]),
  })), PLOT.top + 4, height - PLOT.bottom);
  const groups = lines.map((line) => {
    const paths = [svg("path", { class: "line", d: pathOf(line, curves.along, x, y) })];
    const label = labels.find((each) => each.line === line);
    if (label) {
      paths.push(svg("text", { class: "label", x: width - PLOT.right + 5, y: label.y + 4 }, line.mark));
    }
    return svg("g", { class: `curve ${line.style}`, "data-key": line.key }, svg("title", {}, line.title), paths);
  });
  const at = x(state.values[state.scene.controls.indexOf(control)]);
  return svg("svg", { class: "encoder-chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name },
    grid, below, more.map((line) => svg("path", { class: line.style, d: pathOf(line, curves.along, x, y) })),
    groups,
    svg("line", { class: "at", x1: at, x2: at, y1: PLOT.top, y2: height - PLOT.bottom, "data-left": PLOT.left, "data-width": width - PLOT.left - PLOT.right }));
}

/** Move labels apart, so that none covers another. */
function spread(labels, top, bottom) {
  labels.sort((a, b) => a.y - b.y);
  const step = Math.min(12, (bottom - top) / Math.max(1, labels.length - 1));
  labels.forEach((label, i) => { label.y = Math.max(label.y, top, i ? labels[i - 1].y + step : top); });
  for (let i = labels.length - 1; i >= 0; i -= 1) {
    const least = i === labels.length - 1 ? bottom : labels[i + 1].y - step;
    labels[i].y = Math.min(labels[i].y, least);
  }
  return labels;
}

function pathOf(line, along, x, y) {
  let d = "";
  line.values.forEach((value, i) => {
    const jump = i > 0 && line.turn && Math.abs(value - line.values[i - 1]) > line.turn / 2;
    d += `${i === 0 || jump ? "M" : "L"}${x(along[i]).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return d;
}

/** Buttons that name lines, and bring one to the front. */
function legend(title, lines, box) {
  const say = el("p", { class: "faint encoder-said", "aria-live": "polite" }, title);
  const mark = (key) => {
    for (const group of box.querySelectorAll(".encoder-chart .curve")) {
      group.classList.toggle("front", key !== null && group.dataset.key === key);
      group.classList.toggle("back", key !== null && group.dataset.key !== key);
    }
    const line = lines.find((each) => each.key === key);
    say.textContent = line ? line.title : title;
  };
  const buttons = lines.map((line) => {
    const swatch = svg("svg", { class: "swatch", viewBox: "0 0 24 8", "aria-hidden": "true" },
      svg("g", { class: `curve ${line.style}` }, svg("path", { class: "line", d: "M0 4L24 4" })));
    const button = el("button", {
      type: "button", "data-curve": line.key, title: line.title,
      onpointerenter: () => mark(line.key), onpointerleave: () => mark(null),
      onfocus: () => mark(line.key), onblur: () => mark(null),
    }, swatch, line.short);
    return button;
  });
  box.addEventListener("pointerover", (event) => {
    const group = event.target.closest?.("svg:not(.swatch) .curve");
    if (group) mark(group.dataset.key);
  });
  box.addEventListener("pointerout", (event) => {
    if (event.target.closest?.("svg:not(.swatch) .curve")) mark(null);
  });
  return [say, el("div", { class: "encoder-legend", role: "group", "aria-label": "Lines" }, buttons)];
}

function showCurves() {
  const control = state.scene.controls.find((each) => each.name === curves.factor);
  if (!control) return;
  const boxes = [codeCurves(control)];
  if (curves.factors.some((factor) => factor.predicted !== null)) boxes.push(factorCurves(control));
  if (curves.differs) boxes.unshift(el("p", { class: "notice" }, curves.differs));
  boxes.push(el("p", { class: "faint", id: "encoder-moved", hidden: true },
    "The other sliders have moved since: “Compute again” takes these curves anew."));
  parts.curves.replaceChildren(...boxes);
  moveLine();
}

function codeCurves(control) {
  const byDataset = curves.scaled_by === "dataset";
  const unit = byDataset ? "standard deviations" : "of its own units";
  const lines = curves.curves.map((values, rank) => {
    const code = String(curves.codes[rank] + 1);
    const reach = byDataset ? Math.max(...values) - Math.min(...values) : curves.ranges[rank];
    return {
      key: `code-${code}`,
      short: code,
      values,
      style: rank < MARKED ? `s${rank}` : "rest",
      mark: rank < MARKED ? code : "",
      title: `Code ${code} goes over ${number(reach, 2)} ${unit} along ${control.label}.`,
    };
  });
  const values = curves.curves.flat();
  const reach = Math.max(2, Math.ceil(Math.max(...values.map(Math.abs))));
  const box = el("div", { class: "encoder-plot" });
  const scale = byDataset ? { low: -reach, high: reach, marks: [-reach, 0, reach] }
    : { low: 0, high: 1, marks: [0, 1] };
  parts.curves.append(box); // for its width
  const name = `Codes along ${control.label}: ${lines.slice(0, 3).map((line) => line.title).join(" ")}`;
  const picture = plot(parts.curves, control, { height: 260, name, lines: [...lines].reverse(), ...scale });
  const shown = curves.curves.length;
  const what = `${shown < curves.count ? `The ${shown} of ${count(curves.count)} codes that move most` : "Codes"} along ${control.label}, `;
  const how = byDataset ? "in standard deviations from their means over the dataset."
    : "each from its least value here (0) to its largest (1): how far a code really moves, its line says.";
  const most = `The ${Math.min(MARKED, lines.length)} that move most are drawn in full, and come first below.`;
  box.append(el("h3", {}, "Codes"), picture,
    ...legend(`${what}${how} ${lines.length > MARKED ? most : ""}`, lines, box));
  return box;
}

function factorCurves(control) {
  const controls = new Map(state.scene.controls.map((each) => [each.name, each]));
  const read = curves.factors.filter((factor) => factor.predicted !== null);
  read.sort((a, b) => (b.name === control.name) - (a.name === control.name));
  const lines = read.map((factor, i) => {
    const own = controls.get(factor.name);
    const values = factor.predicted.map((value) => share(own, value));
    const traversed = own === control;
    const reach = Math.max(...values) - Math.min(...values);
    return {
      key: `factor-${factor.name}`,
      short: own.label,
      values,
      turn: factor.circular ? 1 : 0,
      style: traversed ? "traversed" : `s${i % (MARKED + 1)}`,
      mark: "",
      title: traversed ? `${own.label}, read out; the dashed line is the truth.`
        : `${own.label}, read out: it stands still in truth, and moves over ${(100 * reach).toFixed(0)} % of its range here.`,
    };
  });
  const all = lines.flatMap((line) => line.values);
  const [low, high] = [Math.min(0, ...all), Math.max(1, ...all)];
  const truth = { values: curves.along.map((value) => share(control, value)), style: "truth" };
  const box = el("div", { class: "encoder-plot" });
  const known = read.some((factor) => factor.name === control.name);
  const picture = plot(parts.curves, control, {
    height: 220, low, high, marks: [0, 0.5, 1], lines: [...lines].reverse(), more: known ? [truth] : [],
    name: `Factors read out along ${control.label}, as shares of their ranges`,
  });
  const missing = known ? "" : ` ${control.label} itself is not read out.`;
  const title = `Each factor read out of the codes, as a share of its range. ${known
    ? `${control.label} should follow the dashed line, and all others stay level.` : "All should stay level."}${missing}`;
  box.append(el("h3", {}, "Factors read out"), picture, ...legend(title, lines, box));
  return box;
}

/** The line at the sliders' value, and whether the curves are still those of the other sliders. */
function moveLine() {
  if (!curves) return;
  const place = state.scene.controls.findIndex((each) => each.name === curves.factor);
  if (place < 0) return;
  for (const line of parts.curves.querySelectorAll("line.at")) {
    const x = Number(line.dataset.left) + share(state.scene.controls[place], state.values[place]) * Number(line.dataset.width);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
  }
  const moved = state.values.some((value, i) => i !== place && value !== curves.at[i]);
  const note = parts.curves.querySelector("#encoder-moved");
  if (note) note.hidden = !moved;
}
