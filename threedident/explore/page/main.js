// The page: loads the state, then its parts.

import { ask, enter, movePanel, on, point, setScene, showPanel, showScene, state } from "./core.js";
import { startScene } from "./scene.js";
import { startHere } from "./here.js";
import { startPairs } from "./pairs.js";
import { startDataset } from "./dataset.js";
import { startModel } from "./model.js";
import { startEncoder } from "./encoder.js";
import { startTake } from "./take.js";

async function main() {
  let entered = true;
  try {
    entered = await enter();
    state.facts = await ask("state");
  } catch (error) {
    const line = document.getElementById("scene-error");
    line.textContent = error.message;
    line.hidden = false;
    return;
  }
  document.getElementById("tabs").addEventListener("keydown", movePanel);
  startScene();
  showScene(state.facts.scene);
  // From here on there is a scene; a part that depends on it looks at `state` when it begins.
  startHere();
  startPairs();
  startDataset();
  startModel();
  startEncoder();
  startTake();
  if (!entered) await restore();
  on("values", ({ moving }) => { if (!moving) keep(); });
  on("panel", keep);
  keep();
}

// A page that is loaded again shows what it has shown.

function keep() {
  const panel = document.querySelector("[role=tab][aria-selected=true]").id.slice("tab-".length);
  sessionStorage.setItem("shown", JSON.stringify({ ...point(), panel }));
}

async function restore() {
  try {
    const { generator, values, panel } = JSON.parse(sessionStorage.getItem("shown"));
    await setScene(generator, generator.model ? undefined : values);
    showPanel(panel);
  } catch {
    // Nothing was kept, or not by this server: it opens as at first.
  }
}

main();
