// The page: loads the state, then its parts.

import { ask, enter, movePanel, showScene, state } from "./core.js";
import { startScene } from "./scene.js";
import { startHere } from "./here.js";
import { startPairs } from "./pairs.js";
import { startDataset } from "./dataset.js";
import { startModel } from "./model.js";
import { startEncoder } from "./encoder.js";
import { startTake } from "./take.js";

async function main() {
  try {
    await enter();
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
}

main();
