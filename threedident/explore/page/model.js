// A causal model: units, interventions, the graph, and what follows; and the numbers of stored images.

import {
  ask, clearError, debounce, el, isShown, latest, number, on, panel, point, removePanel, setScene, setValues, showBlob,
  showError, state,
} from "./core.js";

const SMALL = 96;
const LARGEST_UNIT = 1000000;

// What is drawn: the unit's number, its environment, and the variables that interventions hold.
let unit = 0;
let environment = "observed";
let held = new Map();
let follows = true; // whether what depends on a slider follows it
let drawn = []; // the values that the server has drawn last
let waiting = 0; // draws under way
let chosen = null; // { label, values } of a small image that was clicked
let left = ""; // the small image that an intervention has left, as it is of the unit's first one
let last = new Map(); // the values before a scene was changed, by name
let fresh = false; // a scene was shown, and its values have not come yet
let focus = ""; // the variable that the panel is about
let box = null;
let root = null;

const place = (id) => document.getElementById(id);
const isModel = () => state.scene?.kind === "model";
const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);
const about = (name) => state.scene.model.variables.find((each) => each.name === name);
const labelOf = (name) => state.scene.controls.find((each) => each.name === name)?.label ?? name;

/** Begin: the choice of a model, and listeners. */
export function startModel() {
  box = el("div", { id: "model-box", hidden: true });
  place("sliders").before(box);
  startChoice();
  on("scene", showScene);
  on("moved", moved);
  on("values", ({ moving }) => {
    if (isModel()) valuesCame();
    else last = new Map(state.scene.controls.map((control, i) => [control.name, state.values[i]]));
    if (state.scene.kind === "stored") (moving ? numberSoon : findNumber)();
  });
  on("panel", (id) => { if (id === "model") refresh(); });
  // The first scene is there already.
  showScene(state.scene);
  if (isModel()) valuesCame();
  else if (state.scene.kind === "stored") findNumber();
}

// The choice of a model

function startChoice() {
  const { models, generator_of_dataset: dataset } = state.facts;
  const select = el("select", { id: "model", name: "model" },
    el("option", { value: "" }, "–"),
    dataset ? el("optgroup", { label: "The dataset" },
      el("option", { value: "dataset" }, "its stored images"),
      dataset.dataset ? null : el("option", { value: "rendered" }, "rendered as it was")) : null,
    el("optgroup", { label: "Causal models" },
      models.map((name) => el("option", { value: `model:${name}` }, name))));
  place("generator").append(el("label", { class: "model" }, el("span", {}, dataset ? "Or a model, or the dataset" : "Or a model"), select));
  select.addEventListener("change", async (event) => {
    event.stopPropagation(); // the form's own listener is about presets
    const generator = select.value === "dataset" ? { dataset: true }
      : select.value === "rendered" ? dataset
        : select.value ? { model: select.value.slice(6) } : { preset: state.facts.presets[0].name };
    try {
      await setScene(generator);
      place("scene-error").hidden = true;
    } catch (error) {
      place("scene-error").textContent = error.message;
      place("scene-error").hidden = false;
      showChoice();
    }
  });
  const showChoice = () => {
    const { model, dataset: stored } = state.generator;
    select.value = model ? `model:${model}` : stored ? "dataset" : "";
  };
  on("scene", showChoice);
  showChoice();
  // Which ones lack mesh files is known a little later: all are read for it.
  ask("model-list").then(({ models: all }) => {
    for (const { name, description, missing } of all) {
      const option = [...select.options].find((each) => each.value === `model:${name}`);
      option.title = description;
      if (!missing.length) continue;
      option.disabled = true;
      option.textContent = `${name} (lacks ${missing.length} mesh file${missing.length > 1 ? "s" : ""})`;
    }
  }, () => {});
}

// The box above the sliders

function showScene(scene) {
  fresh = true;
  removePanel("model");
  root = null;
  box.replaceChildren();
  box.hidden = scene.kind === "preset";
  waiting = 0;
  // Other values of a model come from another unit, or from its environment "independent".
  for (const id of ["middle", "random"]) place(id).hidden = scene.kind === "model";
  if (scene.kind === "stored") {
    box.append(el("p", { id: "stored-number", class: "faint", "aria-live": "polite" }));
    return;
  }
  if (scene.kind !== "model") return;
  unit = 0;
  environment = "observed";
  held = new Map();
  drawn = [];
  chosen = null;
  focus = scene.model.variables[0].name;
  const field = el("input", {
    type: "number", id: "unit", min: 0, max: LARGEST_UNIT, step: 1, value: 0,
    onchange: () => {
      const value = Math.round(Number(field.value));
      if (field.value !== "" && value >= 0 && value <= LARGEST_UNIT) anotherUnit(value);
      field.value = unit;
    },
  });
  const select = el("select", {
    id: "environment", onchange: () => { environment = select.value; draw(false); },
  }, scene.model.environments.map((name) => el("option", {}, name)));
  const mode = (value, words) => el("label", {}, el("input", {
    type: "radio", name: "mode", id: `mode-${value}`, value, checked: (value === "intervene") === follows,
    onchange: () => { follows = value === "intervene"; },
  }), words);
  box.append(
    el("div", { class: "line" },
      el("label", { for: "unit" }, "Unit"), field,
      el("button", { type: "button", id: "another", onclick: () => anotherUnit(randomUnit()) }, "Another unit")),
    el("div", { class: "line" }, el("label", { for: "environment" }, "Environment"), select),
    el("fieldset", { class: "line" },
      el("legend", {}, "Moving a slider"),
      mode("intervene", "intervenes"),
      mode("set", "sets it alone")),
    el("p", { id: "acting", "aria-live": "polite" }),
    scene.model.frames && scene.model.variables.every((each) => !each.children.length)
      ? el("p", { class: "faint" },
        "In the first image no variable causes another: what a slider causes shows in the later images, under Causes.")
      : "",
    el("p", { id: "by-hand", class: "notice", "aria-live": "polite", hidden: true }),
  );
  panel({ id: "model", title: "Causes", start, after: "here" });
}

const randomUnit = () => Math.floor(Math.random() * LARGEST_UNIT);

function anotherUnit(value) {
  unit = value;
  place("unit").value = unit;
  draw(false);
}

/** What requests say of the unit. */
function unitNow() {
  return { generator: state.generator, unit, environment, do: Object.fromEntries(held) };
}

// A slider that is moved is an intervention: the server draws everything else anew.
function moved(detail) {
  if (!isModel() || !detail.name) return;
  focus = detail.name;
  if (!follows) return;
  left = chosen && same(chosen.values, state.values) ? chosen.label : "";
  const control = state.scene.controls.find((each) => each.name === detail.name);
  const value = Math.min(control.high, Math.max(control.low, detail.value));
  held.set(detail.name, control.kind === "discrete" ? Math.round(value) : value);
  detail.handled = true;
  draw(Boolean(detail.moving));
}

const draw = (moving) => { waiting += 1; drawLatest(moving); };
const drawLatest = latest(async (moving) => {
  const generator = state.generator;
  try {
    const answer = await ask("model-draw", unitNow());
    if (answer === null || generator !== state.generator) return;
    drawn = answer.values;
    chosen = null;
    waiting = 0;
    place("scene-error").hidden = true;
    setValues(drawn, { moving });
    drawn = state.values;
  } catch (error) {
    waiting = 0;
    place("scene-error").textContent = error.message;
    place("scene-error").hidden = false;
  }
  showActing();
  refreshSoon(); // also after arrow keys, which do not say when they rest
});

function valuesCame() {
  const controls = state.scene.controls;
  if (fresh) {
    // Values that were only kept from another scene give way to a unit's.
    fresh = false;
    const kept = controls.map((control) => {
      const value = control.held ? control.start : last.get(control.name) ?? control.start;
      const whole = control.kind === "discrete" ? Math.round(value) : value;
      return Math.min(control.high, Math.max(control.low, whole));
    });
    if (same(state.values, kept)) draw(false);
  }
  last = new Map(controls.map((control, i) => [control.name, state.values[i]]));
  showByHand();
}

function showByHand() {
  const line = place("by-hand");
  if (!line) return;
  const ours = waiting > 0 || same(state.values, drawn);
  line.hidden = ours;
  place("acting").hidden = !ours && !held.size; // else it would say that this is the unit
  if (ours) return;
  const words = chosen && same(chosen.values, state.values)
    ? `Shown is ${chosen.label}.`
    : `Not the values of unit ${unit}: they were set one by one, which the model may never draw, or taken from an image.`;
  line.replaceChildren(words, " ", el("button", { type: "button", id: "draw-again", onclick: () => draw(false) },
    `Back to unit ${unit}`));
}

function letGo(name) {
  if (name) held.delete(name);
  else held.clear();
  draw(false);
}

/** Mark the sliders that interventions hold. */
function showActing() {
  if (!isModel()) return;
  for (const mark of document.querySelectorAll(".do-mark")) {
    if (!held.has(mark.dataset.do)) mark.remove();
  }
  for (const [name, value] of held) {
    const row = place("sliders").querySelector(`[data-control="${CSS.escape(name)}"]`);
    if (!row) continue;
    const words = `do(${name} = ${inWords(name, value)})`;
    let mark = row.querySelector(".do-mark");
    if (!mark) {
      mark = el("div", { class: "do-mark", "data-do": name }, el("span", {}),
        el("button", { type: "button", "aria-label": `Let ${labelOf(name)} go`, onclick: () => letGo(name) }, "let go"));
      row.append(mark);
    }
    mark.firstElementChild.textContent = words;
  }
  for (const row of place("sliders").children) row.classList.toggle("intervened", held.has(row.dataset.control));
  const line = place("acting");
  const names = [...held.keys()].map(labelOf).join(", ");
  const before = left ? `Interventions are on the unit's own image, and ${left} was left. ` : "";
  line.replaceChildren(...(held.size
    ? [`${before}Held by intervention: ${names}. The noise of unit ${unit} is the same as before. `,
      el("button", { type: "button", id: "let-all-go", onclick: () => letGo(null) }, "Let all go")]
    : [`Unit ${unit} as the model draws it.`]));
  line.className = held.size ? "" : "faint";
  showByHand();
}

function inWords(name, value) {
  const control = state.scene.controls.find((each) => each.name === name);
  return control.kind === "discrete" ? control.values[value] : number(value);
}

// The panel

function start(panelRoot) {
  root = panelRoot;
  const { model } = state.scene;
  const select = el("select", {
    id: "variable", onchange: () => { focus = select.value; showVariable(); },
  }, model.variables.map((each) => el("option", { value: each.name }, labelOf(each.name))));
  root.append(...[
    el("p", { class: "faint" }, model.description),
    el("h2", {}, "The graph"),
    el("p", { class: "faint" },
      "An arrow leads from a cause to what depends on it. An intervention holds a variable at a value, and cuts the ",
      "arrows into it. All else keeps its noise: the image is a counterfactual of the same unit. A slider that sets ",
      "its variable alone moves no other: nothing follows, and the image may be one that the model never draws."),
    el("div", { class: "scroll graph" }, el("img", { id: "graph", alt: "" })),
    el("h2", {}, "A variable"),
    el("p", {}, el("label", { for: "variable" }, "Variable "), select),
    el("dl", { id: "variable-facts" }),
    el("h2", {}, "With and without the interventions"),
    el("div", { id: "pair", "aria-live": "polite" }),
    model.views.length ? viewsPart(model) : null,
    model.frames ? el("section", {},
      el("h2", {}, `The first ${model.frames} images in time`),
      el("p", { class: "faint" }, "The same unit as a sequence. An intervention holds its variable in all of them. ",
        "Below each stand the variables that are intervened on there, by you or by the model."),
      el("div", { id: "frames", class: "small-images" })) : null,
    el("h2", {}, "The command"),
    el("p", { class: "faint" }, "It renders this unit with these interventions. For values that were set alone, or a ",
      "later image, the part Take has the command."),
    el("pre", { id: "model-command", tabindex: 0 }),
    model.sources ? el("h2", {}, "Sources") : null,
    model.sources ? el("p", { class: "faint" }, model.sources) : null,
  ].filter((each) => each !== null));
  refresh();
}

function viewsPart(model) {
  const select = el("select", { id: "view", onchange: () => showViews() },
    model.views.map((name) => el("option", {}, name)));
  return el("section", {},
    el("h2", {}, "A second view"),
    el("p", {}, el("label", { for: "view" }, "Views "), select),
    el("div", { id: "views", class: "small-images" }));
}

const refreshSoon = debounce(() => refresh());

function refresh() {
  if (!root || !isModel() || !isShown("model")) return;
  clearError(root);
  showVariable();
  showGraph();
  showCommand();
  showPair();
  if (state.scene.model.views.length) showViews();
  if (state.scene.model.frames) showFrames();
}

/** A function that asks for a part of the panel; what belongs to a scene of before is dropped. */
const part = (run) => latest(async () => {
  const where = root;
  if (!where) return;
  try {
    await run(() => where === root);
  } catch (error) {
    if (where === root) showError(where, error);
  }
});

const showGraph = part(async (current) => {
  const names = [...held.keys()];
  const blob = await ask("model-graph", unitNow());
  if (blob === null || !current()) return;
  const image = place("graph");
  showBlob(image, blob);
  const { variables } = state.scene.model;
  const edges = variables.flatMap((each) => (names.includes(each.name) ? [] : each.parents)
    .map((parent) => `${parent} to ${each.name}`));
  image.alt = edges.length ? `Graph within an image: ${edges.join(", ")}` : "Graph: no variable of an image depends on another";
});

const showCommand = part(async (current) => {
  const line = place("model-command");
  if (!state.scene.model.command) {
    line.textContent = "The model is recorded in the dataset alone: no file has it that a command could name.";
    return;
  }
  const answer = await ask("model-command", unitNow());
  if (answer !== null && current()) line.textContent = answer.command;
});

const showPair = part(async (current) => {
  const place_ = place("pair");
  if (!held.size) {
    place_.replaceChildren(el("p", { class: "faint" }, "Move a slider: what it causes follows, and both images stand here."));
    return;
  }
  const answer = await ask("model-images", { ...unitNow(), kind: "counterfactual", resolution: SMALL }, { slot: "model-pair" });
  if (answer === null || !current()) return;
  const [before, after] = answer.values;
  const names = state.scene.controls.map((each) => each.name);
  const changed = names.filter((name, i) => before[i] !== after[i]);
  place_.replaceChildren(
    el("div", { class: "small-images" }, smallImages(answer, ["without", "with the interventions"],
      ["without the interventions", "with the interventions"], [[], [...held.keys()]])),
    changed.length ? el("table", { id: "changed" },
      el("thead", {}, el("tr", {}, ["Changed", "Without", "With", ""].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, changed.map((name) => {
        const i = names.indexOf(name);
        return el("tr", { "data-changed": name }, el("th", { scope: "row" }, labelOf(name)),
          el("td", {}, inWords(name, before[i])), el("td", {}, inWords(name, after[i])),
          el("td", { class: "words" }, held.has(name) ? "held" : "followed"));
      }))) : el("p", { class: "faint" }, "No variable has changed: the interventions hold what was drawn."));
});

const showFrames = part(async (current) => {
  const answer = await ask("model-images", { ...unitNow(), kind: "sequence", resolution: SMALL }, { slot: "model-frames" });
  if (answer === null || !current()) return;
  place("frames").replaceChildren(
    ...smallImages(answer, answer.images.map((_, i) => `image ${i}`), answer.images.map((_, i) => `as image ${i} in time`),
      answer.intervened));
});

const showViews = part(async (current) => {
  const view = place("view").value;
  const answer = await ask("model-images", { ...unitNow(), kind: "views", view, resolution: SMALL }, { slot: "model-views" });
  if (answer === null || !current()) return;
  place("views").replaceChildren(...smallImages(answer, ["first view", "second view"],
    ["in the first view", "in the second view"], answer.intervened));
});

/** Small images; a click shows one at the sliders. `words` say what of the unit each one is. */
function smallImages({ images, values }, labels, words, hits) {
  return images.map((src, i) => el("button", {
    type: "button", class: "small", title: "Show it at the sliders",
    onclick: () => {
      setValues(values[i]);
      chosen = { label: `unit ${unit} ${words[i]}`, values: state.values };
      showByHand();
    },
  },
  el("img", { src, alt: `Unit ${unit} ${words[i]}`, width: SMALL, height: SMALL }),
  el("span", {}, labels[i]),
  hits[i]?.length ? el("span", { class: "faint" }, `do: ${hits[i].map(labelOf).join(", ")}`) : null));
}

function showVariable() {
  const select = place("variable");
  select.value = focus;
  const each = about(focus);
  const names = (list) => (list.length ? list.map(labelOf).join(", ") : "none");
  const rows = [
    [state.scene.model.frames ? "Law at first" : "Law", each.mechanism],
    ["Causes in the image", names(each.parents)],
    ["Effects in the image", names(each.children)],
  ];
  if (state.scene.model.frames) {
    rows.push(["Law in later images", each.transition],
      ["Causes there, same image", names(each.parents_in_step)],
      ["Causes there, image before", names(each.parents_before)],
      ["Effects there", names(each.children_later)]);
  }
  rows.push(["Shows as", each.renders ?? "nothing: no image shows it"], ...(each.status === null ? [] : [["What is known of its law", each.status]]));
  if (each.note) rows.push(["Note", each.note]);
  place("variable-facts").replaceChildren(...rows.flatMap(([term, words]) => [el("dt", {}, term), el("dd", {}, words)]));
}

// Stored images

const findNumber = latest(async () => {
  const generator = state.generator;
  try {
    const answer = await ask("stored-number", point());
    const line = place("stored-number");
    if (answer === null || generator !== state.generator || !line) return;
    const name = `Image ${answer.number.toLocaleString("en")}`;
    if (answer.distance === 0) {
      line.replaceChildren(`${name} has exactly these values.`);
      return;
    }
    line.replaceChildren(`${name} is the nearest, at distance ${number(answer.distance)}. `,
      el("button", { type: "button", id: "go-to-image", onclick: () => setValues(answer.values) }, "Move the sliders to it"));
  } catch (error) {
    const line = place("stored-number");
    if (line) line.replaceChildren(error.message);
  }
});
const numberSoon = debounce(() => findNumber());
