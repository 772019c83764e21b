"use strict";
// The page is a readable table without this. With it, the table sorts, filters and ranks.
(() => {
  const table = document.querySelector("table.board");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const controls = document.querySelector(".controls");
  const [search, track, data, metric] = ["search", "track", "data", "metric"].map(
    (name) => document.getElementById(name));
  const count = document.getElementById("count");
  const heads = [...table.tHead.rows[0].cells];
  let ranked = ""; // the metric that ranks go by
  let sorted = null; // {column, down}; null for the order of the page

  const cellsOf = (name) => [...table.querySelectorAll(`[data-metric="${CSS.escape(name)}"]`)];

  function value(row, column) {
    const cell = row.cells[column];
    if (heads[column].dataset.kind === "number") {
      const number = parseFloat(cell.dataset.value);
      return Number.isNaN(number) ? null : number;
    }
    return (cell.dataset.value ?? cell.textContent).trim().toLowerCase();
  }

  function compare(a, b) {
    const [x, y] = [value(a, sorted.column), value(b, sorted.column)];
    if (x === null || y === null) return (x === null) - (y === null); // what has none comes last
    const order = typeof x === "number" ? x - y : x.localeCompare(y);
    return sorted.down ? -order : order;
  }

  function sort() {
    heads.forEach((head, column) => {
      if (sorted && column === sorted.column) {
        head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      } else {
        head.removeAttribute("aria-sort");
      }
    });
    body.append(...(sorted ? rows.slice().sort(compare) : rows));
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits = (!track.value || row.dataset.track === track.value)
        && (!data.value || row.dataset.data === data.value)
        && words.every((word) => row.dataset.search.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${rows.length} rows, ranked by ${ranked}`;
  }

  // Ranks and columns follow the metric that is chosen.
  function choose() {
    const chosen = metric.value;
    for (const option of metric.options) {
      if (!option.value) continue;
      const hidden = chosen !== "" && option.value !== chosen;
      for (const cell of cellsOf(option.value)) cell.hidden = hidden;
    }
    const ranking = chosen || metric.dataset.first;
    const column = heads.findIndex((head) => head.dataset.metric === ranking);
    for (const row of rows) {
      const rank = row.cells[column].dataset.rank;
      row.cells[0].firstChild.textContent = rank || "\u2013";
      row.cells[0].dataset.value = rank || "";
    }
    ranked = heads[column].textContent;
    sorted = chosen ? { column, down: true } : null;
    sort();
    filter();
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.dataset.kind === "number" && head.dataset.metric !== undefined;
      sorted = { column, down: sorted && sorted.column === column ? !sorted.down : first };
      sort();
    });
  });
  search.addEventListener("input", filter);
  track.addEventListener("change", filter);
  data.addEventListener("change", filter);
  metric.addEventListener("change", choose);
  controls.hidden = false;
  choose();
})();
