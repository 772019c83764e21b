// What one can take along: the latents, the image, the command that renders it, a traversal.

import { ask, clearError, debounce, el, isShown, latest, on, panel, point, showBlob, showError, state }
  from "./core.js";

const PREVIEW_SIDE = 96; // pixels of an image in the strip that is shown
const PIXELS = "The image has the pixels that the command below makes on this machine, and carries values and command as text.";
const ABOUT = {
  preset: () => ["The latents are what ", el("code", {}, "3dident render --latents"), ` takes. ${PIXELS}`],
  model: () => [`${PIXELS} Latents are those of the ten factors, where these say all of its scene.`],
  stored: () => ["The image as it is stored, and its factors, which it also carries as text."],
};
let root = null;

const place = (id) => root.querySelector(`#take-${id}`);

/** Add the panel. */
export function startTake() {
  panel({ id: "take", title: "Take", start, show: refresh });
  on("scene", () => { if (root) showFactors(); });
  on("values", () => {
    if (!root || !isShown("take")) return;
    root.classList.add("moved");
    place("copy").disabled = true; // until the command is that of this point
    later();
  });
}

function field(id, title, input) {
  input.id = `take-${id}`;
  return el("label", { class: "take-field" }, el("span", {}, title), input);
}

function start(panelRoot) {
  root = panelRoot;
  const quality = el("select", {},
    el("option", { value: "standard" }, "standard"), el("option", { value: "draft" }, "draft"));
  const size = el("input", { type: "number", min: "8", max: "512", step: "1", value: "224" });
  const steps = el("input", { type: "number", min: "3", max: "13", step: "1", value: "7" });
  const form = { class: "take-fields", onsubmit: (event) => event.preventDefault() };
  root.append(
    el("h2", {}, "This point"),
    el("form", { ...form, "aria-label": "How the image is made", id: "take-view" },
      field("size", "Pixels along each side, 8 to 512", size), field("quality", "Quality", quality)),
    el("div", { class: "take-buttons" },
      button("image", "Save the image (PNG)", saveImage),
      button("latents", "Save the latents (.npy)", saveLatents)),
    el("p", { class: "faint", id: "take-about" }),
    el("div", { id: "take-rendered" },
      el("h2", {}, "The command that renders it"),
      el("pre", { id: "take-command", tabindex: "0", "aria-label": "The command" }),
      el("div", { class: "take-buttons" },
        button("copy", "Copy", copy),
        el("span", { id: "take-copied", class: "faint", role: "status" })),
      el("p", { class: "faint", id: "take-note" })),
    el("h2", {}, "A traversal through this point"),
    el("form", { ...form, "aria-label": "The traversal" },
      field("factor", "Factor", el("select", {})), field("steps", "Images, 3 to 13", steps)),
    el("div", { class: "take-strip" },
      el("img", { id: "take-preview", alt: "", hidden: true })),
    el("div", { class: "take-buttons" },
      button("strip", "Save the strip (PNG)", saveStrip),
      el("span", { id: "take-strip-note", class: "faint" })),
  );
  for (const form of root.querySelectorAll("form")) form.addEventListener("change", () => later());
  showFactors();
}

function button(id, title, run) {
  const made = el("button", { type: "button", id: `take-${id}` }, title);
  made.addEventListener("click", async () => {
    made.disabled = true;
    try {
      await run();
      clearError(root);
    } catch (error) {
      showError(root, error);
    } finally {
      made.disabled = false;
      made.focus();
    }
  });
  return made;
}

function showFactors() {
  const select = place("factor");
  const before = select.value;
  const free = state.scene.controls.filter((control) => !control.held && control.high > control.low);
  select.replaceChildren(...free.map((control) => el("option", { value: control.name }, control.label)));
  if (free.some((control) => control.name === before)) select.value = before;
  place("strip").disabled = free.length === 0;
  const stored = state.scene.kind === "stored";
  place("view").hidden = place("rendered").hidden = stored;
  place("about").replaceChildren(...ABOUT[state.scene.kind]());
  place("latents").textContent = stored ? "Save the factors (.npy)" : "Save the latents (.npy)";
}

function view() {
  return { resolution: place("size").valueAsNumber, quality: place("quality").value };
}

function refresh() {
  later();
}

const later = debounce(() => { showCommand(); showStrip(); }, 200);

const showCommand = latest(async () => {
  if (!isShown("take") || state.scene.kind === "stored") return;
  const line = place("command");
  try {
    const answer = await ask("take-command", { ...point(), ...view() });
    // A word stays in one line, so that no option is broken at its hyphens.
    const words = answer.command.split(" ").map((word) => el("span", {}, word));
    line.replaceChildren(...words.flatMap((word, i) => (i ? [" ", word] : [word])));
    place("note").textContent = (answer.latents
      ? `Save the latents as ${answer.latents} where you run it. `
      : "It holds each variable of the model at its slider's value. ")
      + "It makes a dataset of one image. Files of a preset or model are named as they were given to this page.";
    place("copy").disabled = false;
  } catch (error) {
    line.textContent = error.message;
    place("note").textContent = "";
    place("copy").disabled = true;
  }
  place("copied").textContent = "";
});

function strip(resolution) {
  return {
    ...point(), resolution, quality: place("quality").value,
    factor: place("factor").value, steps: place("steps").valueAsNumber,
  };
}

const showStrip = latest(async () => {
  const name = place("factor").value;
  if (!name) root.classList.remove("moved");
  if (!isShown("take") || !name) return;
  const label = place("factor").selectedOptions[0].textContent;
  try {
    const asked = strip(PREVIEW_SIDE);
    const blob = await ask("take-strip", asked, { slot: "take-strip" });
    if (blob === null || JSON.stringify(asked) !== JSON.stringify(strip(PREVIEW_SIDE))) return;
    const image = place("preview");
    showBlob(image, blob);
    image.alt = `A traversal of ${label} through this point, from its low end to its high end`;
    image.hidden = false;
    place("strip-note").textContent = state.scene.kind === "stored"
      ? "" : `It is saved at ${place("size").value} pixels an image.`;
    root.classList.remove("moved");
    clearError(root);
  } catch (error) {
    showError(root, error);
  }
});

async function saveImage() {
  save(await ask("take-image", { ...point(), ...view() }), "3dident-image.png");
}

async function saveLatents() {
  const now = point();
  let name = "factors.npy";
  if (state.scene.kind !== "stored") {
    // The name that the command has for just these.
    const answer = await ask("take-command", { ...now, ...view() }).catch(() => null);
    name = answer?.latents ?? "latents.npy";
  }
  save(await ask("take-latents", now), name);
}

async function saveStrip() {
  const name = place("factor").value.replaceAll("_", "-");
  save(await ask("take-strip", strip(place("size").valueAsNumber)), `3dident-${name}.png`);
}

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // the download has begun by then
}

async function copy() {
  const line = place("command");
  try {
    await navigator.clipboard.writeText(line.textContent);
    place("copied").textContent = "Copied.";
  } catch { // not allowed, or the page is open under another address
    const range = document.createRange();
    range.selectNodeContents(line);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    place("copied").textContent = "Selected: copy it with the keyboard.";
  }
}
