// The scene: the choice of a generator, the sliders, and the image that follows them.

import { ask, debounce, el, emit, latest, number, on, point, setScene, setValues, showBlob, state }
  from "./core.js";

const SIDE = 224;
const rows = [];

const place = (id) => document.getElementById(id);

/** Begin: controls for the generator, and listeners. */
export function startScene() {
  startGenerator();
  place("middle").addEventListener("click", () => {
    setValues(state.scene.controls.map((control) => control.start));
    emit("moved", { name: null });
  });
  place("random").addEventListener("click", () => {
    setValues(state.scene.controls.map(randomValue));
    emit("moved", { name: null });
  });
  place("sliders").addEventListener("submit", (event) => event.preventDefault());
  on("scene", buildSliders);
  on("values", ({ moving }) => {
    showValues();
    if (moving) {
      draw("draft");
      settle();
    } else {
      draw("standard");
    }
  });
}

function randomValue(control) {
  if (control.held) return control.start;
  const value = control.low + Math.random() * (control.high - control.low);
  if (control.kind === "discrete" || control.kind === "step") {
    const count = control.high - control.low + 1;
    return control.low + Math.floor(Math.random() * count);
  }
  return value;
}

// While a slider moves, draft images as fast as they come; once it rests, a good one.
const settle = debounce(() => draw("standard"));
const draw = latest(async (quality) => {
  const moving = quality === "draft" && state.scene.kind !== "stored";
  const began = performance.now();
  const now = point();
  try {
    const blob = await ask(
      "image",
      { ...now, resolution: SIDE, quality: moving ? "draft" : "standard", moving },
      { slot: "image" },
    );
    if (blob === null) return;
    const image = place("image");
    showBlob(image, blob);
    image.dataset.quality = moving ? "draft" : "standard";
    image.dataset.point = JSON.stringify(now);
    const took = Math.round(performance.now() - began);
    place("status").textContent = state.scene.kind === "stored"
      ? "an image of the dataset"
      : `${moving ? "draft, while it moves" : "standard quality"}, ${SIDE} x ${SIDE}, ${took} ms`;
    place("scene-error").hidden = true;
  } catch (error) {
    complain(error);
  }
});

function complain(error) {
  place("scene-error").textContent = error.message;
  place("scene-error").hidden = false;
}

// The generator

function startGenerator() {
  const form = place("generator");
  const { presets, shapes, materials } = state.facts;
  const preset = choice("preset", "Preset", presets.map((each) => each.name));
  const shape = choice("shape", "Shape", shapes);
  const material = choice("material", "Material", materials);
  form.append(...[preset, shape, material].map((each) => each.parentElement));
  form.addEventListener("submit", (event) => event.preventDefault());
  const change = async (event) => {
    const chosen = presets.find((each) => each.name === preset.value);
    const generator = { preset: preset.value };
    if (event.target !== preset) {
      if (shape.value !== chosen.shape) generator.shape = shape.value;
      if (material.value !== chosen.material) generator.material = material.value;
    }
    try {
      await setScene(generator);
    } catch (error) {
      complain(error);
      showGenerator();
    }
  };
  form.addEventListener("change", change);

  function showGenerator() {
    const { preset: name, shape: itsShape, material: itsMaterial } = state.generator;
    const own = presets.find((each) => each.name === name);
    for (const [select, value] of [
      [preset, name], [shape, itsShape ?? own?.shape], [material, itsMaterial ?? own?.material],
    ]) {
      // A shape of the user's own is a choice while its preset is shown.
      for (const extra of select.querySelectorAll("option.extra")) extra.remove();
      const given = state.scene.kind === "preset";
      if (!given) select.append(el("option", { value: "", class: "extra" }, "none"));
      select.closest("label").hidden = !given && select !== preset;
      if (value && ![...select.options].some((option) => option.value === value)) {
        select.append(el("option", { value, class: "extra" }, value.split("/").pop()));
      }
      select.value = value ?? "";
      select.disabled = state.scene.kind !== "preset" && select !== preset;
    }
    preset.title = own?.description ?? "";
  }
  on("scene", showGenerator);
}

function choice(id, title, values) {
  const select = el("select", { id, name: id }, values.map((each) => el("option", {}, each)));
  el("label", {}, el("span", {}, title), select);
  return select;
}

// The sliders

function buildSliders(scene) {
  rows.length = 0;
  const form = place("sliders");
  form.replaceChildren(...scene.controls.map((control, i) => {
    const row = control.kind === "discrete" ? classRow(control, i) : sliderRow(control, i);
    rows.push(row);
    return row.root;
  }));
  place("notes").replaceChildren(...scene.notes.map((note) => el("li", {}, note)));
}

function move(i, value, moving) {
  const moved = { name: state.scene.controls[i].name, value, moving, handled: false };
  emit("moved", moved);
  if (moved.handled) return; // of a causal model other sliders move with it, once they are known
  const values = [...state.values];
  values[i] = value;
  setValues(values, { moving });
}

function sliderRow(control, i) {
  const step = control.kind === "step" ? 1 : (control.high - control.low) / 200;
  const range = el("input", {
    type: "range", id: `slider-${control.name}`, min: control.low, max: control.high,
    step: control.kind === "step" ? 1 : "any", disabled: control.held,
    "data-factor": control.name,
  });
  const field = el("input", {
    type: "number", min: control.low, max: control.high, step: control.kind === "step" ? 1 : "any",
    disabled: control.held, "aria-label": `${control.label}, as a number`,
    "data-number": control.name,
  });
  const scene = el("output", { class: "faint", for: range.id });
  range.addEventListener("input", () => move(i, Number(range.value), true));
  range.addEventListener("change", () => move(i, Number(range.value), false));
  range.addEventListener("keydown", (event) => {
    // A range without steps would not move by arrow keys alike everywhere.
    const sizes = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
    if (!(event.key in sizes) || control.held) return;
    event.preventDefault();
    const fine = event.shiftKey && control.kind !== "step" ? 0.1 : 1;
    move(i, state.values[i] + sizes[event.key] * step * fine, true);
  });
  field.addEventListener("change", () => {
    if (field.value !== "" && Number.isFinite(Number(field.value))) move(i, Number(field.value), false);
    else showValues();
  });
  const bar = el("div", { class: "bar" }, range);
  if (control.colors.length) bar.append(colorBar(control));
  for (const [low, high] of control.flat) bar.append(flatPart(control, low, high));
  const flat = control.flat.length
    ? `In the hatched part of ${control.label} all values have one colour. ` : "";
  const root = el("div", {
    class: `control ${control.held ? "held" : ""}`, "data-control": control.name,
    title: `${flat}${control.note}`.trim() || null,
  },
  el("label", { for: range.id }, control.label), bar, field, scene);
  return {
    root,
    show(value) {
      range.value = value;
      const shown = control.kind === "step" ? String(value) : value.toFixed(3);
      if (document.activeElement !== field || Number(field.value) !== value) field.value = shown;
      scene.textContent = inScene(control, value);
      range.setAttribute("aria-valuetext", [shown, scene.textContent].filter(Boolean).join(", "));
    },
  };
}

/** A value in the units of the scene. */
export function inScene(control, value) {
  if (control.held) return "held";
  if (!control.scene) return "";
  const [low, high] = control.scene;
  const share = control.high > control.low ? (value - control.low) / (control.high - control.low) : 0;
  return `${number(low + share * (high - low))} ${control.unit}`;
}

function colorBar(control) {
  const strip = el("div", { class: "colors", "aria-hidden": "true" });
  strip.style.backgroundImage = `linear-gradient(to right, ${control.colors.join(", ")})`;
  return strip;
}

function flatPart(control, low, high) {
  const part = el("div", { class: "flat", "aria-hidden": "true", "data-flat": control.name });
  const share = (value) => (value - control.low) / (control.high - control.low);
  part.style.setProperty("--from", share(low));
  part.style.setProperty("--to", share(high));
  return part;
}

function classRow(control, i) {
  const buttons = control.values.map((name, value) => {
    const radio = el("input", {
      type: "radio", name: `class-${control.name}`, value, disabled: control.held,
      onchange: () => move(i, value, false),
    });
    return el("label", { class: "class" }, radio, el("span", {}, name));
  });
  const many = control.values.length > 6;
  const select = many ? el("select", {
    "aria-label": control.label, disabled: control.held, "data-factor": control.name,
    onchange: () => move(i, Number(select.value), false),
  }, control.values.map((name, value) => el("option", { value }, name))) : null;
  const root = el("div", {
    class: "control classes", "data-control": control.name, role: "group",
    "aria-label": control.label, title: control.note || null,
  }, el("span", { class: "label" }, control.label), many ? select : el("div", {}, buttons));
  return {
    root,
    show(value) {
      if (many) select.value = value;
      else buttons.forEach((label, k) => { label.firstElementChild.checked = k === value; });
    },
  };
}

function showValues() {
  rows.forEach((row, i) => row.show(state.values[i]));
}
