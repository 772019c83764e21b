// Positive pairs: partners z~ of the sliders' z, exact and as a dataset's images stand in for them.

import { ask, clearError, debounce, el, freeBlobs, isShown, latest, number, on, panel, point, setValues,
  showBlob, showError, state } from "./core.js";

const SIZE = 104; // pixels of an image
const MOST = 12;
const LISTED = 3; // changes under an image
const KEPT = 200; // stored images

const CONDITIONALS = [
  ["normal", "normal"], ["laplace", "laplace"], ["gennorm", "gennorm (generalised normal)"],
  ["uniform", "uniform"],
];
const form = {
  name: "normal", width: 0.1, beta: 3, unchanged: new Set(), change: null,
  transition: "uni", k: null, rate: 1, view: null, views: [], count: 5, seed: 0,
};
let root = null;

/** Add the panel. */
export function startPairs() {
  panel({ id: "pairs", title: "Pairs", start, show: () => refresh() });
  on("scene", () => {
    form.view = null;
    form.views = [];
    if (root) buildForm();
    if (isShown("pairs")) later();
  });
  on("values", () => {
    if (!isShown("pairs") || !root) return;
    place("pairs-rows").classList.add("stale");
    later();
  });
}

const place = (id) => root.querySelector(`#${id}`);

function start(panelRoot) {
  root = panelRoot;
  root.append(
    el("p", { id: "pairs-intro" }),
    el("form", { id: "pairs-form", "aria-label": "Conditional", onsubmit: (e) => e.preventDefault() }),
    el("p", { id: "pairs-words", "aria-live": "polite" }),
    el("p", { id: "pairs-command", class: "faint" }),
    el("div", { id: "pairs-rows" }),
    el("p", { id: "pairs-more", class: "faint" }),
    el("div", { id: "pairs-spread" }),
  );
  buildForm();
}

/** What the requests say of the conditional. */
function conditional() {
  const { kind } = state.scene;
  if (kind === "model") return form.view === null ? {} : { view: form.view };
  if (kind === "stored") {
    return form.transition === "uni" ? { name: "uni", change: form.k } : { name: "lap", rate: form.rate };
  }
  return {
    name: form.name, width: form.width, beta: form.beta, change: form.change,
    unchanged: state.scene.controls.filter((c) => !c.held && form.unchanged.has(c.name)).map((c) => c.name),
  };
}

const request = () => ({ ...point(), conditional: conditional(), count: form.count, seed: form.seed });

// The form

function buildForm() {
  const { kind } = state.scene;
  place("pairs-intro").textContent =
    "A positive pair is two images that have something in common: z, where the sliders are, and z~, drawn " +
    "around it from a law p(z~ | z). A click on an image moves the sliders there." +
    (kind === "preset" ? " Widths and distances are in raw units, in which each factor runs from −1 to 1." : "");
  const parts = kind === "model" ? modelFields() : kind === "stored" ? gridFields() : presetFields();
  const count = el("input", { type: "number", id: "pairs-count", min: 1, max: MOST, step: 1, value: form.count });
  count.addEventListener("change", () => {
    form.count = Math.min(MOST, Math.max(1, Math.round(Number(count.value) || 5)));
    count.value = form.count;
    changed();
  });
  place("pairs-form").replaceChildren(
    ...parts,
    el("div", { class: "fields" },
      field("Partners", count),
      el("button", { type: "button", id: "pairs-again", onclick: () => { form.seed += 1; changed(); } }, "Draw again"),
      el("span", { id: "pairs-seed", class: "faint" })),
  );
}

function field(title, ...inputs) {
  return el("label", { for: inputs[0].id }, el("span", { class: "faint" }, title), ...inputs);
}

function select(id, entries, value, change) {
  const input = el("select", { id }, entries.map(([key, title]) => el("option", { value: key }, title)));
  input.value = value;
  input.addEventListener("change", () => change(input.value));
  return input;
}

/** A slider on a logarithmic scale, and the number beside it. */
function scaled(id, title, [low, high, most], value, change) {
  const range = el("input", {
    type: "range", id: `${id}-range`, min: Math.log10(low), max: Math.log10(high), step: 0.01,
    "aria-label": `${title}, as a slider`,
  });
  const exact = el("input", { type: "number", id, min: low / 10, max: most, step: "any" });
  const show = (now) => {
    exact.value = now;
    range.value = Math.log10(now);
    range.setAttribute("aria-valuetext", String(now));
  };
  show(value);
  range.addEventListener("input", () => {
    value = Number((10 ** Number(range.value)).toPrecision(2));
    show(value);
    change(value);
  });
  exact.addEventListener("change", () => {
    const typed = Number(exact.value);
    if (exact.value !== "" && typed > 0) value = Math.min(most, typed);
    show(value); // what does not fit is put back, as elsewhere on the page
    change(value);
  });
  return field(title, exact, range);
}

function presetFields() {
  const width = { normal: "Standard deviation (sigma)", laplace: "Scale (lambda)", gennorm: "Scale (lambda)" };
  const first = [field("Conditional", select("pairs-name", CONDITIONALS, form.name, (name) => {
    form.name = name;
    buildForm();
    place("pairs-name").focus();
    changed();
  }))];
  if (form.name in width) {
    first.push(scaled("pairs-width", width[form.name], [0.01, 2, 100], form.width, (now) => {
      form.width = now;
      changed();
    }));
  }
  if (form.name === "gennorm") {
    first.push(scaled("pairs-beta", "Exponent (beta)", [0.2, 20, 1000], form.beta, (now) => {
      form.beta = now;
      changed();
    }));
  }
  const boxes = state.scene.controls.map((control) => {
    const box = el("input", {
      type: "checkbox", id: `pairs-moves-${control.name}`, disabled: control.held, "data-moves": control.name,
    });
    box.checked = !control.held && !form.unchanged.has(control.name);
    box.addEventListener("change", () => {
      form.unchanged[box.checked ? "delete" : "add"](control.name);
      showNumbers();
      changed();
    });
    const title = control.held ? `${control.label} (held)` : control.label;
    return el("label", { class: "check", for: box.id }, box, title);
  });
  const many = el("select", { id: "pairs-change" });
  many.addEventListener("change", () => {
    form.change = many.value === "" ? null : Number(many.value);
    changed();
  });
  function showNumbers() {
    const moving = state.scene.controls.filter((c) => !c.held && !form.unchanged.has(c.name)).length;
    if (form.change !== null && form.change >= moving) form.change = null;
    const counts = Array.from({ length: Math.max(0, moving - 1) }, (_, i) => i + 1);
    many.replaceChildren(
      el("option", { value: "" }, "all of these"),
      ...counts.map((k) => el("option", { value: k }, `${k} of these, anew for each pair`)));
    many.value = form.change ?? "";
  }
  showNumbers();
  return [
    el("div", { class: "fields" }, ...first),
    el("fieldset", {}, el("legend", {}, "Which factors change"), ...boxes),
    el("div", { class: "fields" }, field("In each pair change", many)),
  ];
}

function gridFields() {
  const fields = [field("Transition", select("pairs-transition", [
    ["uni", "uni: some factors, to any value"], ["lap", "lap: small steps of all"],
  ], form.transition, (name) => {
    form.transition = name;
    buildForm();
    place("pairs-transition").focus();
    changed();
  }))];
  if (form.transition === "uni") {
    const counts = state.scene.controls.filter((c) => !c.held).map((_, i) => [String(i + 1), String(i + 1)]);
    fields.push(field("Factors that change", select(
      "pairs-k", [["", "from 1 to all but one"], ...counts], form.k ?? "",
      (k) => { form.k = k === "" ? null : Number(k); changed(); })));
  } else {
    fields.push(scaled("pairs-rate", "Rate (larger: smaller steps)", [0.1, 20, 1000], form.rate, (now) => {
      form.rate = now;
      changed();
    }));
  }
  return [el("div", { class: "fields" }, ...fields)];
}

function modelFields() {
  if (!form.views.length) return [];
  const entries = form.views.map((view) => [view, view]);
  return [el("div", { class: "fields" }, field("Second views", select(
    "pairs-view", entries, form.view, (view) => { form.view = view; changed(); })))];
}

function changed() {
  place("pairs-rows").classList.add("stale");
  place("pairs-spread").classList.add("stale");
  later();
}

// What the server says

const later = debounce(() => refresh(), 200);
const refresh = latest(async () => {
  if (!isShown("pairs") || !root || !state.values.length) return;
  const asked = request();
  let answer;
  try {
    answer = await ask("pairs", asked, { slot: "pairs" });
  } catch (error) {
    clearAll();
    showError(root, error);
    return;
  }
  if (answer === null || !same(asked)) return; // of other values; the newer ones are asked for
  clearError(root);
  place("pairs-form").hidden = answer.kind === "none";
  if (answer.kind === "none") {
    clearAll();
    place("pairs-words").append(el("span", { class: "notice", id: "pairs-none" }, answer.refusal));
    return;
  }
  if (answer.kind === "views" && !form.views.length) {
    form.views = answer.views;
    form.view = answer.view;
    buildForm();
  }
  showWords(answer);
  showExact(answer);
  place("pairs-more").textContent = answer.no_matching;
  if (answer.matching) {
    showMatched(asked);
    showSpread(asked);
  } else {
    place("pairs-spread").replaceChildren();
    place("pairs-spread").classList.remove("stale");
  }
  if (answer.z.number === null) rendered(answer, asked.generator); // which a newer request ends
});

function clearAll() {
  freeBlobs(place("pairs-rows"));
  for (const id of ["pairs-words", "pairs-command", "pairs-rows", "pairs-more", "pairs-spread"]) {
    place(id).replaceChildren();
    place(id).classList.remove("stale");
  }
}

function showWords(answer) {
  place("pairs-words").textContent = answer.words.join(" ");
  const commands = {
    conditional: "As options of 3dident render --pairs, and of 3dident pairs: ",
    grid: "As options of 3dident pairs: ",
    views: "As an option of 3dident render --model: ",
  };
  place("pairs-command").replaceChildren(
    commands[answer.kind], el("code", { id: "pairs-options" }, answer.options));
  place("pairs-seed").textContent = `seed ${form.seed}`;
}

/** Replace the rows of some ways, and keep the focus where it was. */
function showRows(rows) {
  const box = place("pairs-rows");
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.tile : null;
  for (const [way, parts] of Object.entries(rows)) {
    let row = box.querySelector(`[data-way="${way}"]`);
    if (!row) {
      row = el("section", { class: "way", "data-way": way });
      box.append(row);
    }
    freeBlobs(row);
    row.classList.remove("stale");
    row.replaceChildren(...parts);
  }
  if (focused) box.querySelector(`[data-tile="${focused}"]`)?.focus({ preventScroll: true });
}

function showExact(answer) {
  const tiles = [
    tile("exact", 0, { title: "z", values: answer.z.values, number: answer.z.number }),
    ...answer.partners.map((partner, i) => tile("exact", i + 1, {
      title: partner.number === null ? `z~ ${i + 1}` : `z~ ${i + 1}, image ${count(partner.number)}`,
      values: partner.values, from: answer.z.values, number: partner.number,
    })),
  ];
  const title = answer.kind === "views" ? "Second views" : "Exact";
  const about = {
    conditional: "z~ is drawn from the conditional itself, and rendered.",
    grid: "z~ is drawn from the transition itself; its image is in the dataset.",
    views: "z~ is drawn by the model's law, and rendered.",
  }[answer.kind];
  // Matches of another z do not stand beside these.
  if (!answer.matching) {
    for (const row of place("pairs-rows").querySelectorAll('[data-way]:not([data-way="exact"])')) {
      freeBlobs(row);
      row.remove();
    }
  }
  showRows({ exact: [el("h2", {}, title), el("p", { class: "faint" }, about), el("div", { class: "tiles" }, tiles)] });
  place("pairs-rows").classList.remove("stale");
  if (answer.z.number !== null) storedImages(place("pairs-rows").querySelector('[data-way="exact"]'));
  if (answer.matching) for (const row of place("pairs-rows").querySelectorAll('[data-way]:not([data-way="exact"])')) row.classList.add("stale");
}

async function rendered(answer, generator) {
  const row = place("pairs-rows").querySelector('[data-way="exact"]');
  const images = [...row.querySelectorAll("img")];
  try {
    const rows = [answer.z, ...answer.partners].map((each) => each.values);
    const drawn = await ask("pair-images", { generator, rows, size: SIZE }, { slot: "pair-images" });
    if (drawn !== null) images.forEach((img, i) => { img.src = drawn.images[i]; });
  } catch (error) {
    showError(root, error);
  }
}

const far = (value) => (value >= 0.1 ? value.toFixed(2) : number(value));
const count = (value) => value.toLocaleString("en");

/** The values that differ most, in words, the largest difference (as a share of the range) first. */
function changes(values, from) {
  const rows = state.scene.controls.map((control, i) => {
    const span = control.high - control.low;
    let step = Math.abs(values[i] - from[i]);
    if (control.kind === "circular") step = Math.min(step, span - step);
    if (control.kind === "discrete") step = values[i] === from[i] ? 0 : span;
    return { control, i, size: span > 0 ? step / span : 0 };
  }).filter((row) => row.size > 0).sort((a, b) => b.size - a.size);
  const shown = (control, value) => (control.kind === "discrete" ? control.values[value]
    : control.kind === "step" ? String(value) : value.toFixed(2).replace("-", "−"));
  const lines = rows.slice(0, LISTED).map(({ control, i }) =>
    [control.label, `${shown(control, from[i])} → ${shown(control, values[i])}`]);
  return { lines, more: rows.length - lines.length };
}

/** An image of a pair; a click moves the sliders to its values. */
function tile(way, place_, { title, values, from = null, number: stored = null, notes = [], reachable = true }) {
  const differing = from === null ? { lines: [], more: 0 } : changes(values, from);
  const text = differing.lines.map(([label, step]) => `${label} ${step}`).join(", ");
  const img = el("img", {
    alt: `${title}${text ? `: ${text}` : ""}`, width: SIZE, height: SIZE, "data-stored": stored,
  });
  return el("button", {
    type: "button", class: "tile", "data-tile": `${way}-${place_}`, disabled: !reachable,
    title: reachable ? "Move the sliders here" : "The sliders' preset holds a factor elsewhere",
    onclick: () => setValues(values),
  },
  el("span", { class: "frame" }, img),
  el("span", { class: "name" }, title),
  notes.map((note) => el("span", { class: "faint" }, note)),
  differing.lines.map(([label, step]) => el("span", { class: "change" }, el("span", { class: "label" }, label), " ", el("span", { class: "step" }, step))),
  differing.more > 0 ? el("span", { class: "faint" }, `and ${differing.more} more`) : null,
  from !== null && !differing.lines.length ? el("span", { class: "faint" }, "no factor differs") : null);
}

// Stored images, each read once, two at a time.

const blobs = new Map();

async function storedImages(row) {
  const waiting = [...row.querySelectorAll("img[data-stored]")];
  const work = async () => {
    for (let img = waiting.shift(); img; img = waiting.shift()) {
      if (!img.isConnected) return;
      const key = img.dataset.stored;
      if (!blobs.has(key)) {
        blobs.set(key, ask("stored-image", { number: Number(key), size: SIZE }));
        if (blobs.size > KEPT) blobs.delete(blobs.keys().next().value);
      }
      const blob = await blobs.get(key).catch((error) => {
        blobs.delete(key);
        throw error;
      });
      if (blob && img.isConnected) showBlob(img, blob);
    }
  };
  try {
    await Promise.all([work(), work()]);
  } catch (error) {
    showError(root, error);
  }
}

// Matched pairs

const same = (asked) => JSON.stringify(asked) === JSON.stringify(request());

const showMatched = latest(async (asked) => {
  const box = place("pairs-rows");
  if (!box.querySelector('[data-way="nearest"]')) {
    showRows({ nearest: [el("h2", {}, "Nearest matching"), el("p", { class: "faint" }, "Matching ... the first time builds an index of the dataset.")] });
  }
  let answer;
  try {
    answer = await ask("pairs-matched", asked);
  } catch (error) {
    showRows({ nearest: [el("h2", {}, "Nearest matching and resampling"), el("p", { class: "error" }, error.message)], resampled: [] });
    return;
  }
  if (answer === null || !same(asked) || state.scene.kind !== "preset") return;
  for (const row of box.querySelectorAll(".stale")) row.classList.remove("stale");
  if (answer.refusal) {
    showRows({
      nearest: [el("h2", {}, "Nearest matching and resampling"), el("p", { class: "notice", id: "pairs-refusal" }, answer.refusal)],
      resampled: [],
    });
    return;
  }
  showRows({ nearest: nearestRow(answer), resampled: resampledRow(answer) });
  for (const way of ["nearest", "resampled"]) storedImages(box.querySelector(`[data-way="${way}"]`));
});

function anchorTile(way, { anchor, distance }) {
  return tile(way, 0, {
    title: `image ${count(anchor.number)}`, values: anchor.values, number: anchor.number,
    notes: [`${far(distance)} from z`], reachable: anchor.reachable,
  });
}

function partnerTiles(way, about) {
  return about.partners.map((partner, i) => tile(way, i + 1, {
    title: `image ${count(partner.number)}`, values: partner.values, from: about.anchor.values,
    number: partner.number, reachable: partner.reachable,
    notes: partner.distance === undefined ? [] : [`${far(partner.distance)} from z~ ${i + 1}`],
  }));
}

function nearestRow(answer) {
  const { nearest, reach } = answer;
  const search = answer.search === "exact" ? "" : " (an approximate search, as in training)";
  const different = new Set(nearest.partners.map((partner) => partner.number)).size;
  const few = different < nearest.partners.length
    ? ` The ${nearest.partners.length} partners are matched to ${different} different image${different === 1 ? "" : "s"}.` : "";
  const measured = `These pairs are ${far(nearest.length)} long on average, the exact ones ${far(nearest.exact_length)}.${few}`;
  return [
    el("h2", {}, "Nearest matching"),
    el("p", { class: "faint" },
      `Of the dataset's ${count(answer.images)} images, those nearest to z and to each z~ stand in for them${search}. `,
      "Distances are Euclidean, over ",
      answer.factors.length === 10 ? "all ten factors." : `${answer.factors.join(", ")}.`),
    answer.far
      ? el("p", { class: "notice", id: "pairs-far" },
        `Far off here: the image nearest to z is ${far(nearest.distance)} away, exact partners ${far(reach)} on average. `,
        `${nearest.distance > reach ? "Most" : "Much"} of what these pairs differ in is the matching. ${measured}`)
      : el("p", { class: "faint" },
        `The image nearest to z is ${far(nearest.distance)} away, exact partners ${far(reach)} on average. ${measured}`),
    ...answer.notes.map((note) => el("p", { class: "notice" }, note)),
    el("div", { class: "tiles" }, anchorTile("nearest", nearest), partnerTiles("nearest", nearest)),
  ];
}

function resampledRow({ resampled }) {
  if (resampled.refusal) {
    return [el("h2", {}, "Resampling"), el("p", { class: "notice" }, resampled.refusal)];
  }
  const few = resampled.effective < resampled.partners.length;
  return [
    el("h2", {}, "Resampling"),
    el("p", { class: "faint" },
      "z is an image of the dataset, here the one nearest to the sliders; z~ is drawn among all others with ",
      `weight p(z~ | z). These pairs are ${far(resampled.length)} long on average.`),
    el("p", { class: few ? "notice" : "faint" },
      `The weights are as uneven as if ${number(resampled.effective)} images shared them evenly (effective sample size).`,
      few ? " That is fewer than the partners shown: images repeat, whatever the seed." : ""),
    el("div", { class: "tiles" }, anchorTile("resampled", resampled), partnerTiles("resampled", resampled)),
  ];
}

// How wide pairs come out

let measuredFor = null;

const showSpread = latest(async (asked) => {
  const body = { generator: asked.generator, conditional: asked.conditional };
  const key = JSON.stringify(body);
  const box = place("pairs-spread");
  if (key === measuredFor && box.childElementCount) {
    box.classList.remove("stale");
    return;
  }
  measuredFor = null;
  box.classList.remove("stale");
  box.replaceChildren(el("h2", {}, "How wide pairs come out"), el("p", { id: "pairs-measuring" }, "Measuring ..."));
  let answer;
  try {
    answer = await ask("pairs-spread", body);
  } catch {
    box.replaceChildren(); // the rows above say it
    return;
  }
  if (answer === null || JSON.stringify({ generator: state.generator, conditional: conditional() }) !== key) return;
  measuredFor = key;
  if (answer.refusal) box.replaceChildren();
  else box.replaceChildren(...spreadParts(answer));
});

const WAYS = [["asked", "asked for"], ["nearest", "nearest"], ["resampled", "resampled"]];

function spreadParts(answer) {
  const ways = WAYS.filter(([way]) => answer[way] && !answer[way].refusal);
  const labels = new Map(state.scene.controls.map((control) => [control.name, control.label]));
  const largest = Math.max(1e-12, ...ways.flatMap(([way]) => answer[way].std));
  const rows = answer.factors.map((name, i) => el("tr", {},
    el("th", { scope: "row" }, labels.get(name) ?? name),
    el("td", { class: "chart" }, track(ways, answer, i, largest)),
    ways.map(([way]) => el("td", {}, answer[way].std[i].toFixed(3)))));
  const line = (title, cell) => el("tr", {}, el("th", { scope: "row" }, title), el("td"),
    ways.map(([way]) => el("td", {}, cell(answer[way]))));
  const titles = { nearest: "Nearest matching", resampled: "Resampling" };
  const words = ways.slice(1).map(([way]) => `${titles[way]}: ${answer[way].overall.toFixed(3)}.`);
  const { nearest, resampled } = answer;
  return [
    el("h2", {}, "How wide pairs come out"),
    el("p", { class: "finding", id: "pairs-finding" },
      `Asked for: ${answer.asked.overall.toFixed(3)} per factor. ${words.join(" ")}`),
    el("p", { class: "faint" },
      `Root mean square of z~ − z in raw units, over the whole dataset of ${count(answer.images)} images: `,
      `${count(answer.draws)} pairs, ${resampled.draws ? `${count(resampled.draws)} of them resampled` : "none resampled"}.`),
    el("div", { class: "scroll" }, el("table", { class: "spread" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Factor"),
        el("th", { scope: "col", class: "chart" }, `0 to ${number(largest, 2)}`),
        ways.map(([way, title]) => el("th", { scope: "col" }, el("span", { class: `mark ${way}` }), ` ${title}`)))),
      el("tbody", {}, rows),
      el("tfoot", {},
        line("all factors", (each) => each.overall.toFixed(3)),
        line("kurtosis", (each) => (each.kurtosis === null ? "–" : each.kurtosis.toFixed(2))),
        line("length of a pair", (each) => each.length.toFixed(3))))),
    el("p", { class: "faint" },
      "Kurtosis, the fourth moment over the square of the second, says how heavy the tails are: 3 for a normal, 6 for a Laplace that is not cut off. ",
      `A point drawn in the box is ${far(nearest.to_match)} from its nearest image on average; `,
      `in ${number(100 * nearest.one_image)}\u00a0% of the pairs z and z~ are nearest to the same one.`,
      resampled.refusal ? "" : ` The median effective sample size of resampling is ${number(resampled.effective)}.`),
    resampled.refusal ? el("p", { class: "notice" }, resampled.refusal) : null,
  ].filter((part) => part !== null);
}

function track(ways, answer, i, largest) {
  const label = ways.map(([way, title]) => `${title} ${answer[way].std[i].toFixed(3)}`).join(", ");
  const marks = ways.map(([way]) => {
    const mark = el("span", { class: `mark ${way}` });
    mark.style.left = `${(100 * answer[way].std[i]) / largest}%`;
    return mark;
  });
  return el("div", { class: "track", role: "img", "aria-label": label }, marks);
}
