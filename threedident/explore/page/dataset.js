// The dataset: histograms that filter it, a sheet of its images, and those near the sliders' point.

import { ask, clearError, debounce, el, isShown, latest, number, on, panel, point, setScene,
  setValues, showError, state, svg } from "./core.js";

const ON_A_PAGE = 48;
const NEAR = 8;
const AT_ONCE = 6; // images that are loaded at the same time
const KEPT = 240; // small images that are kept, so that paging back asks for none again
const PAUSE = 60; // ms between two searches while sliders move
const SLOWLY = 5; // bins that PageUp and PageDown move a handle

let facts = null;
let root = null;
let histograms = [];
let thumbnails = null;
let page = 0;
let chosen = null;

/** Add the panel, where there is a dataset. */
export function startDataset() {
  facts = state.facts.dataset;
  if (!facts) return;
  panel({ id: "dataset", title: "Dataset", start, show });
  const move = () => {
    if (!isShown("dataset") || !root) return;
    near();
    for (const each of histograms) each.mark();
  };
  on("values", move); // which also come right after a scene
}

const place = (name) => root.querySelector(`[data-place="${name}"]`);
const counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function start(panelRoot) {
  root = panelRoot;
  root.classList.toggle("coarse", Math.max(...facts.shape.slice(0, 2)) < 100);
  thumbnails = new Thumbnails();
  const shuffled = el("input", {
    type: "checkbox", id: "dataset-shuffle", checked: facts.grid || facts.sequences !== null,
    onchange: () => { page = 0; refilter(); },
  });
  const field = el("input", {
    type: "number", min: 1, step: 1, value: 1, "data-place": "page", "aria-label": "Page",
    onchange: () => turn(Math.max(1, Math.round(Number(field.value) || 1)) - 1),
  });
  root.append(
    el("p", { id: "dataset-facts" }, aboutDataset()),
    el("h2", {}, "The images nearest to the sliders"),
    el("div", { id: "dataset-near" },
      el("div", { class: "near", "data-place": "near" },
        Array.from({ length: Math.min(NEAR, facts.count) }, () => tile())),
      el("p", { class: "faint", "data-place": "distance" }),
      el("p", { class: "notice", "data-place": "note", hidden: true })),
    el("h2", {}, "Filters"),
    el("p", { class: "faint" },
      "Draw a range over a histogram, or move its two ends with the arrow keys. The filled bars are ",
      "the images that pass the filters of all other factors, the line is all images; each has its ",
      "own height. The triangle is the slider."),
    el("div", { class: "passing" },
      el("strong", { "data-place": "passing", role: "status" }),
      el("button", { type: "button", id: "dataset-clear", disabled: true, onclick: clearAll },
        "Clear all filters")),
    el("div", { id: "dataset-filters" }),
    el("h2", {}, "The images"),
    el("div", { id: "dataset-images" },
      el("div", { class: "pages" },
        el("button", { type: "button", "data-place": "before", onclick: () => turn(page - 1) }, "Previous"),
        el("label", {}, "Page ", field, el("span", { "data-place": "pages" })),
        el("button", { type: "button", "data-place": "after", onclick: () => turn(page + 1) }, "Next"),
        el("label", {}, shuffled, " shuffled")),
      el("p", { class: "faint", "data-place": "hint" },
        "An image that you choose sets the sliders to its factors. Arrow keys move from one to the next."),
      el("div", { id: "dataset-chosen", hidden: true },
        el("img", { alt: "", "data-place": "chosen-image" }),
        el("div", { class: "words" },
          el("h3", {}, el("span", { "data-place": "chosen-title", role: "status" }),
            el("button", { type: "button", id: "dataset-close", onclick: close }, "close")),
          el("p", { class: "faint", "data-place": "chosen-note" }),
          el("div", { class: "scroll", "data-place": "chosen-values" }))),
      el("div", { id: "dataset-sheet", role: "group", "aria-label": "Images", onkeydown: walk })),
  );
  histograms = facts.factors.map((axis) => (axis.classes.length ? classes(axis) : ranges(axis)));
  place("passing").textContent = counted(facts.count, "image");
  root.querySelector("#dataset-filters").append(...histograms.map((each) => each.root));
  begin();
}

function show() {
  near();
  for (const each of histograms) each.mark();
}

async function begin() {
  try {
    const answer = await ask("dataset");
    for (const each of histograms) each.whole(answer.counts[each.axis.name]);
    refilter();
  } catch (error) {
    showError(root, error);
  }
}

function aboutDataset() {
  const [height, width] = facts.shape;
  const form = `: ${counted(facts.count, "image")} of ${width} × ${height} pixels, ${facts.form}`;
  const of = facts.sequences === null ? "" : `, in ${counted(facts.sequences, "sequence")}`;
  const made = facts.model ? `. Drawn by the causal model ${facts.model}, whose variables are the factors here`
    : facts.preset ? `. Made with the preset ${facts.preset}` : "";
  const more = facts.wanted && facts.wanted > facts.count
    ? ` ${facts.wanted.toLocaleString("en")} images were asked for: those that are not rendered yet are not here.` : "";
  return [el("strong", {}, facts.name), `${form}${of}${made}.${more}`];
}

// Filters

function filters() {
  const wanted = {};
  for (const each of histograms) {
    const filter = each.filter();
    if (filter !== null) wanted[each.axis.name] = filter;
  }
  return wanted;
}

const showSheet = debounce((answer) => fillSheet(answer));

/** Ask which images pass. Histograms follow at once, the sheet once the filters rest. */
const refilter = latest(async () => {
  try {
    const shuffle = root.querySelector("#dataset-shuffle").checked;
    const wanted = page;
    const answer = await ask("dataset-filter",
      { filters: filters(), page, size: ON_A_PAGE, shuffle }, { slot: "dataset-filter" });
    if (answer === null) return;
    clearError(root);
    for (const each of histograms) each.show(answer.counts[each.axis.name]);
    const all = answer.passing === facts.count;
    place("passing").textContent = all ? `All ${counted(facts.count, "image")} pass`
      : `${answer.passing.toLocaleString("en")} of ${counted(facts.count, "image")} pass`;
    root.querySelector("#dataset-clear").disabled = histograms.every((each) => each.filter() === null);
    if (page !== wanted) return; // another page has been asked for
    page = answer.page;
    showSheet(answer);
  } catch (error) {
    showError(root, error);
  }
});

const nearAgain = debounce(() => near());

function changed() {
  page = 0;
  refilter();
  nearAgain();
}

function clearAll() {
  for (const each of histograms) each.clear();
  changed();
}

/** The frame that all filters have: a caption, what passes, and the button that clears it. */
function frame(axis, clear, ...content) {
  const button = el("button", {
    type: "button", class: "clear", hidden: true, "aria-label": `Clear the filter of ${axis.label}`,
    onclick: () => { clear(); changed(); },
  }, "clear");
  const box = el("div", { class: "filter", role: "group", "aria-label": axis.label, "data-filter": axis.name },
    el("div", { class: "caption" }, el("span", { class: "name" }, axis.label), button), content);
  return { box, button };
}

const WIDTH = 200;
const HEIGHT = 48;

/** Bars from `from` to `to` as a path, the highest `HEIGHT` high. */
function bars(counts, most, keep) {
  const wide = WIDTH / counts.length;
  let path = "";
  counts.forEach((count, k) => {
    if (!count || !keep(k)) return;
    const high = Math.max(1, (HEIGHT * count) / most);
    path += `M${(k * wide).toFixed(2)} ${HEIGHT}v${-high.toFixed(2)}h${wide.toFixed(2)}v${high.toFixed(2)}z`;
  });
  return path;
}

/** The outline of a histogram as a path. */
function outline(counts) {
  const wide = WIDTH / counts.length;
  const most = Math.max(1, ...counts);
  const points = counts.map((count, k) => `V${(HEIGHT - (HEIGHT - 1) * (count / most)).toFixed(2)}H${((k + 1) * wide).toFixed(2)}`);
  return `M0 ${HEIGHT}${points.join("")}V${HEIGHT}`;
}

/** A filter by a range: a histogram to draw over, and a handle at each end of the range. */
function ranges(axis) {
  const { bins } = axis;
  const circular = axis.kind === "circular";
  let ends = [0, bins]; // as numbers of edges between bins; of a circular factor the first can be later
  let counts = [];
  let drag = null;

  const inside = svg("path", { class: "inside" });
  const outside = svg("path", { class: "outside" });
  const line = svg("path", { class: "all" });
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `How many images have which ${axis.label}`,
  }, outside, inside, line);
  const handles = [0, 1].map((end) => el("div", {
    class: `handle end-${end}`, role: "slider", tabindex: "0", "data-end": end,
    "aria-label": `${axis.label}, ${end ? "to" : "from"}`, "aria-valuemin": axis.low,
    "aria-valuemax": axis.high, onkeydown: (event) => press(event, end),
  }));
  const shades = [0, 1].map(() => el("div", { class: "shade", "aria-hidden": "true" }));
  const marker = el("div", { class: "marker", "aria-hidden": "true", hidden: true });
  const area = el("div", { class: "brush", onpointerdown: grab, onpointermove: pull, onpointerup: drop,
    onpointercancel: drop }, picture, shades, handles, marker);
  const range = el("span", { class: "range", "data-place": "range" });
  const { box, button } = frame(axis, clear, area,
    el("div", { class: "ends faint", "aria-hidden": "true" },
      el("span", {}, shown(0, 0)), range, el("span", {}, shown(bins, 1))));

  function whole() {
    return ends[0] === 0 && ends[1] === bins;
  }

  function value(edge) {
    return axis.low + ((axis.high - axis.low) * edge) / bins;
  }

  /** The value at an edge, as people read it: of whole numbers the first or last within. */
  function at(edge, end) {
    if (!axis.step) return value(edge);
    return end ? Math.floor(value(edge) - 1e-9) : Math.ceil(value(edge) + 1e-9);
  }

  function shown(edge, end) {
    return number(at(edge, end));
  }

  function inScene(edge) {
    const share = edge / bins;
    return number(axis.scene[0] + share * (axis.scene[1] - axis.scene[0]));
  }

  function keeps(k) {
    const [low, high] = ends;
    return low < high ? k >= low && k < high : k >= low || k < high;
  }

  function draw() {
    const most = Math.max(1, ...counts);
    inside.setAttribute("d", bars(counts, most, keeps));
    outside.setAttribute("d", bars(counts, most, (k) => !keeps(k)));
    handles.forEach((handle, end) => {
      handle.style.left = `${(100 * ends[end]) / bins}%`;
      handle.setAttribute("aria-valuenow", value(ends[end]));
      const scene = axis.scene ? `, ${inScene(ends[end])} ${axis.unit}` : "";
      handle.setAttribute("aria-valuetext", shown(ends[end], end) + scene);
    });
    const [low, high] = ends.map((edge) => (100 * edge) / bins);
    // What does not pass is shaded: both sides, or the middle of a range that comes round.
    const parts = low < high ? [[0, low], [high, 100]] : [[high, low], [0, 0]];
    parts.forEach(([from, to], i) => {
      shades[i].style.left = `${from}%`;
      shades[i].style.width = `${to - from}%`;
    });
    box.classList.toggle("filtered", !whole());
    button.hidden = whole();
    const scene = axis.scene ? ` (${inScene(ends[0])} to ${inScene(ends[1])} ${axis.unit})` : "";
    const round = ends[0] > ends[1] ? ", through the end of the turn" : "";
    range.textContent = whole() ? "" : `${shown(ends[0], 0)} to ${shown(ends[1], 1)}${scene}${round}`;
  }

  function set(low, high) {
    if (low === high || (low > high && !circular)) return;
    if (low === ends[0] && high === ends[1]) return;
    ends = circular && low === bins && high === 0 ? [0, bins] : [low, high];
    draw();
    changed();
  }

  function clear() {
    ends = [0, bins];
    draw();
  }

  function press(event, end) {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: SLOWLY, PageDown: -SLOWLY };
    if (event.key === "Escape" || event.key === "Delete") {
      clear();
      changed();
    } else if (event.key in steps || event.key === "Home" || event.key === "End") {
      event.preventDefault();
      const other = ends[1 - end];
      let edge = ends[end] + (steps[event.key] ?? 0);
      if (event.key === "Home") edge = 0;
      if (event.key === "End") edge = bins;
      edge = Math.min(bins, Math.max(0, edge));
      if (circular && edge === other) edge += Math.sign(edge - ends[end]);
      if (!circular) edge = end ? Math.max(other + 1, edge) : Math.min(other - 1, edge);
      if (edge < 0 || edge > bins) return;
      set(...(end ? [other, edge] : [edge, other]));
    }
  }

  function edgeAt(event) {
    const { left, width } = area.getBoundingClientRect();
    const share = (event.clientX - left) / width;
    return { exact: share * bins, edge: Math.round(Math.min(1, Math.max(0, share)) * bins), near: (12 / width) * bins };
  }

  function grab(event) {
    if (event.button !== 0) return;
    const { exact, edge, near: reach } = edgeAt(event);
    const gaps = ends.map((each) => Math.abs(each - exact));
    const end = gaps[0] < gaps[1] ? 0 : 1;
    const within = ends[0] < ends[1] && exact > ends[0] && exact < ends[1];
    if (!whole() && gaps[end] <= reach) drag = { end };
    else if (!whole() && within) drag = { from: edge, ends: [...ends] };
    else drag = { start: exact };
    area.setPointerCapture(event.pointerId);
    handles[drag.end ?? 1].focus({ preventScroll: true });
    event.preventDefault();
  }

  function pull(event) {
    if (drag === null) return;
    const { exact, edge } = edgeAt(event);
    if (drag.ends) {
      const by = Math.min(bins - drag.ends[1], Math.max(-drag.ends[0], edge - drag.from));
      set(drag.ends[0] + by, drag.ends[1] + by);
    } else if (drag.end !== undefined) {
      const other = ends[1 - drag.end];
      const to = circular || !drag.end === (edge < other) ? edge : other + (drag.end ? 1 : -1);
      set(...(drag.end ? [other, to] : [to, other]));
    } else {
      const [low, high] = [Math.min(drag.start, exact), Math.max(drag.start, exact)];
      if (high - low < 0.3) return; // a tap, not a range
      const from = Math.max(0, Math.min(bins - 1, Math.floor(low)));
      set(from, Math.min(bins, Math.max(from + 1, Math.ceil(high))));
    }
  }

  function drop() {
    drag = null;
  }

  draw();
  return {
    axis,
    root: box,
    clear,
    filter: () => (whole() ? null : ends.map(value)),
    whole(all) {
      line.setAttribute("d", outline(all));
    },
    show(now) {
      counts = now;
      draw();
    },
    mark() {
      const k = state.scene.controls.indexOf(sliderOf(axis));
      const share = k < 0 ? -1 : (state.values[k] - axis.low) / (axis.high - axis.low);
      marker.hidden = !(share >= 0 && share <= 1);
      marker.style.left = `${100 * share}%`;
    },
  };
}

/** A filter by classes: a check box for each. */
function classes(axis) {
  const out = new Set();
  const rows = axis.classes.map((name, k) => {
    const check = el("input", {
      type: "checkbox", checked: true, "data-class": k,
      onchange: () => {
        if (check.checked) out.delete(k);
        else out.add(k);
        draw();
        changed();
      },
    });
    const bar = svg("rect", { x: 0, y: 0, width: 0, height: 8, class: "inside" });
    const count = el("span", { class: "faint count" });
    const share = svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { x: 0, y: 0, width: 100, height: 8, class: "wash" }), bar);
    const line = el("label", { class: "class" }, check, el("span", { class: "name" }, name), share, count);
    return { check, bar, count, line };
  });
  const none = el("button", {
    type: "button", class: "clear", "aria-label": `Let no class of ${axis.label} pass`,
    onclick: () => { rows.forEach((_, k) => out.add(k)); draw(); changed(); },
  }, "none");
  const { box, button } = frame(axis, clear, el("div", { class: "classes" }, rows.map((row) => row.line)));
  button.before(none);

  function draw() {
    rows.forEach((row, k) => { row.check.checked = !out.has(k); });
    box.classList.toggle("filtered", out.size > 0);
    button.hidden = out.size === 0;
  }

  function clear() {
    out.clear();
    draw();
  }

  draw();
  return {
    axis,
    root: box,
    clear,
    filter: () => (out.size ? axis.classes.map((_, k) => k).filter((k) => !out.has(k)) : null),
    whole() {},
    show(counts) {
      const most = Math.max(1, ...counts);
      rows.forEach((row, k) => {
        row.bar.setAttribute("width", (100 * counts[k]) / most);
        row.count.textContent = counts[k].toLocaleString("en");
      });
    },
    mark() {
      const k = state.scene.controls.indexOf(sliderOf(axis));
      rows.forEach((row, i) => row.line.classList.toggle("here", k >= 0 && state.values[k] === i));
    },
  };
}

// Small images

/** Loads small images: those that are seen, a few at a time, and keeps some. */
class Thumbnails {
  constructor() {
    this.waiting = [];
    this.busy = 0;
    this.kept = new Map(); // number -> blob, the last used at the end
    this.watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        this.watcher.unobserve(entry.target);
        this.load(entry.target);
      }
    }, { rootMargin: "100px" });
    const side = Math.max(facts.shape[0], facts.shape[1]);
    const times = Math.max(1, Math.floor(side / (80 * Math.min(2, window.devicePixelRatio))));
    this.size = Math.round(side / times);
  }

  /** Load a button's image once it is seen. */
  watch(button) {
    this.watcher.observe(button);
  }

  /** Forget a button that is taken off the page. */
  forget(button) {
    this.watcher.unobserve(button);
  }

  /** Load a button's image now, or as soon as others are there. */
  load(button) {
    const blob = this.kept.get(button.dataset.number);
    if (blob) {
      this.keep(button.dataset.number, blob);
      draw(button, blob);
      return;
    }
    this.waiting = this.waiting.filter((each) => each !== button && each.isConnected);
    this.waiting.push(button);
    this.next();
  }

  keep(key, blob) {
    this.kept.delete(key);
    this.kept.set(key, blob);
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
  }

  async next() {
    if (this.busy >= AT_ONCE || !this.waiting.length) return;
    const button = this.waiting.shift();
    const key = button.dataset.number;
    this.busy += 1;
    try {
      const blob = this.kept.get(key) ?? await ask("stored-image", { number: Number(key), size: this.size });
      this.keep(key, blob);
      if (button.isConnected && button.dataset.number === key) draw(button, blob);
    } catch (error) {
      if (button.isConnected && button.dataset.number === key) fail(button, error);
    } finally {
      this.busy -= 1;
      this.next();
    }
    this.next();
  }
}

function draw(button, blob) {
  const image = button.querySelector("img");
  const url = URL.createObjectURL(blob);
  image.onload = image.onerror = () => URL.revokeObjectURL(url); // it is decoded: free it
  image.src = url;
  image.hidden = false;
  button.querySelector(".gone").hidden = true;
}

function fail(button, error) {
  button.dataset.failed = "";
  button.querySelector("img").hidden = true;
  button.querySelector(".gone").hidden = false;
  button.title = error.message;
  const box = button.closest("#dataset-images, #dataset-near");
  if (box) showError(box, error);
}

/** A button that shows an image; `put` gives it one. */
function tile() {
  const button = el("button", { type: "button", class: "tile", hidden: true },
    el("img", { alt: "", hidden: true }), el("span", { class: "gone", hidden: true }, "cannot be read"),
    el("span", { class: "under" }));
  button.addEventListener("click", () => choose(Number(button.dataset.number), button.factors));
  return button;
}

function put(button, image, values, under) {
  const told = facts.factors.map((axis, k) => `${axis.label} ${axis.classes[values[k]] ?? number(values[k])}`);
  button.factors = values;
  button.hidden = false;
  button.title = `Image ${image}: ${told.join(", ")}`;
  button.setAttribute("aria-label", `Image ${image}${under === `${image}` ? "" : `, ${under}`}: ${told.join(", ")}`);
  button.querySelector(".under").textContent = under;
  button.classList.toggle("chosen", chosen === image);
  if (button.dataset.number === `${image}` && !("failed" in button.dataset)) return false;
  delete button.dataset.failed;
  button.dataset.number = `${image}`;
  return true;
}

// The sheet

function turn(to) {
  page = Math.max(0, to);
  refilter();
}

function fillSheet(answer) {
  const sheet = root.querySelector("#dataset-sheet");
  const had = sheet.contains(document.activeElement);
  for (const button of sheet.querySelectorAll(".tile")) thumbnails.forget(button);
  clearError(root.querySelector("#dataset-images"));
  const buttons = answer.numbers.map((image, k) => {
    const button = tile();
    put(button, image, answer.values[k], `${image}`);
    button.tabIndex = k ? -1 : 0;
    return button;
  });
  sheet.replaceChildren(...(buttons.length ? buttons : [el("p", {}, "No image passes these filters.")]));
  for (const button of buttons) thumbnails.watch(button);
  if (had && buttons.length) buttons[0].focus();
  if (root.querySelector("#dataset-near [data-failed]")) near(); // perhaps they are back, too
  place("page").value = answer.page + 1;
  place("page").max = answer.pages;
  place("pages").textContent = ` of ${answer.pages.toLocaleString("en")}`;
  place("before").disabled = answer.page === 0;
  place("after").disabled = answer.page + 1 >= answer.pages;
}

/** Arrow keys walk over the sheet, of which one image is in the order of Tab. */
function walk(event) {
  const all = [...event.currentTarget.querySelectorAll(".tile")];
  const here = all.indexOf(document.activeElement);
  if (here < 0) return;
  const top = all[0].offsetTop;
  const across = all.filter((each) => each.offsetTop === top).length;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
  let to = here + (steps[event.key] ?? 0);
  if (event.key === "Home") to = 0;
  if (event.key === "End") to = all.length - 1;
  if (to === here || !all[to]) return;
  event.preventDefault();
  all[here].tabIndex = -1;
  all[to].tabIndex = 0;
  all[to].focus();
}

// The image that is chosen

const sorted = (data) => JSON.stringify(Object.entries(data ?? {}).filter(([, value]) => value !== null).sort());

async function choose(image, values) {
  chosen = image;
  for (const each of root.querySelectorAll(".tile")) each.classList.toggle("chosen", each.dataset.number === `${image}`);
  let note = "";
  try {
    const own = state.facts.generator_of_dataset; // the scene that made its images
    const stays = own?.dataset && !missing().length; // it is not known, and the sliders know its factors
    if (own && !stays && sorted(own) !== sorted(state.generator)) await setScene(own);
    note = setSliders(values);
  } catch (error) {
    note = error.message;
  }
  showChosen(image, note);
}

/** Take the facts about the chosen image away; the keyboard goes on where that image is. */
function close() {
  const of = root.querySelector("#dataset-sheet .tile.chosen") ?? root.querySelector("#dataset-sheet .tile");
  root.querySelector("#dataset-chosen").hidden = true;
  of?.focus({ preventScroll: true });
}

/** The slider of a factor, if its values mean the same; undefined elsewhere. */
function sliderOf(axis) {
  const control = state.scene.controls.find((each) => each.name === axis.name);
  if (!control || state.scene.kind === "stored") return control;
  if (control.kind !== axis.kind) return undefined;
  if (control.kind === "discrete") {
    return JSON.stringify(control.values) === JSON.stringify(axis.classes) ? control : undefined;
  }
  const nearly = 1e-5 * (control.high - control.low); // single and double precision differ
  const [low, high] = axis.range ?? [NaN, NaN];
  const same = Math.abs(low - control.low) <= nearly && Math.abs(high - control.high) <= nearly;
  return same ? control : undefined;
}

/** The factors that the sliders do not move, or with other values. */
function missing() {
  return facts.factors.filter((axis) => !sliderOf(axis));
}

/** Set the sliders to an image's factors; say where they cannot be. */
function setSliders(values) {
  const known = new Map(facts.factors.map((axis, k) => [axis.name, values[k]]));
  const { controls, title } = state.scene;
  const unknown = missing();
  if (unknown.length) {
    return `The sliders of ${title} have no such ${unknown.map((axis) => axis.label).join(", ")}: they stay where they are.`;
  }
  setValues(controls.map((control, k) => known.get(control.name) ?? state.values[k]));
  const off = controls.filter((control, k) => known.has(control.name)
    && Math.abs(state.values[k] - known.get(control.name)) > 1e-6 * (control.high - control.low));
  if (!off.length) return "The sliders are at its factors.";
  return `The sliders are at its factors, but for ${off.map((control) => control.label).join(", ")}, which ${title} does not let go there.`;
}

const showChosen = latest(async (image, note) => {
  const box = root.querySelector("#dataset-chosen");
  box.hidden = false;
  place("chosen-title").textContent = `Image ${image}`;
  place("chosen-note").textContent = note;
  try {
    const about = await ask("dataset-image-facts", { number: image });
    const words = [about.place];
    if (about.environment) words.push(`environment ${about.environment}`);
    if (about.intervened?.length) words.push(`intervened on: ${about.intervened.join(", ")}`);
    const told = words.filter(Boolean).join("; ");
    place("chosen-title").textContent = `Image ${image}${told ? ` (${told})` : ""}`;
    place("chosen-values").replaceChildren(...tables(about));
  } catch (error) {
    place("chosen-values").replaceChildren(el("p", { class: "error" }, error.message));
  }
  const img = place("chosen-image");
  try {
    const blob = await ask("stored-image", { number: image });
    const url = URL.createObjectURL(blob);
    img.onload = img.onerror = () => URL.revokeObjectURL(url);
    img.src = url;
    img.alt = `Image ${image} as it is stored`;
    img.hidden = false;
  } catch (error) {
    img.hidden = true;
    place("chosen-values").prepend(el("p", { class: "error" }, error.message));
  }
});

function tables(about) {
  const scene = about.scene.length ? [table(
    about.same ? ["Factor", "Raw", "In the scene"] : ["In the scene", "Raw", "Value"],
    about.scene.map((row) => [row.label, number(row.raw, 4), `${number(row.scene, 4)} ${row.unit}`]))] : [];
  if (about.same && scene.length) return scene;
  const own = table(["Factor", "Value"],
    about.values.map((row) => [row.label, row.class ?? number(row.value, 4)]));
  return [own, ...scene];
}

function table(head, rows) {
  return el("table", {},
    el("thead", {}, el("tr", {}, head.map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, rows.map(([name, ...cells]) => el("tr", {},
      el("th", { scope: "row" }, name), cells.map((cell) => el("td", {}, cell))))));
}

// The nearest images

const near = latest(async () => {
  if (!isShown("dataset")) return;
  const box = root.querySelector("#dataset-near");
  try {
    const answer = await ask("dataset-nearest", { ...point(), count: NEAR, filters: filters() },
      { slot: "dataset-nearest" });
    if (answer === null) return;
    clearError(box);
    const tiles = [...box.querySelectorAll(".tile")];
    tiles.forEach((button, k) => {
      const image = answer.images[k];
      button.hidden = !image;
      if (!image) return;
      const fresh = put(button, image.number, image.values, number(image.distance, 3));
      const out = image.fails.length > 0;
      button.classList.toggle("out", out);
      if (out) button.title += `. It does not pass the filter of ${image.fails.join(", ")}`;
      if (fresh) thumbnails.load(button);
    });
    place("near").hidden = !answer.images.length;
    const dimmed = answer.images.some((image) => image.fails.length)
      ? " Those that do not pass the filters are dimmed." : "";
    place("distance").textContent = answer.reason || `Below each is its distance: ${answer.distance}.${dimmed}`;
    place("note").textContent = answer.note;
    place("note").hidden = !answer.note;
  } catch (error) {
    showError(box, error);
  }
  await new Promise((done) => { setTimeout(done, PAUSE); });
});
