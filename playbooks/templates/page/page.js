"use strict";
// Everything is in the page already; this finds hosts, and draws charts where tables show the same.
(() => {
  const fleet = JSON.parse(document.getElementById("fleet").textContent);

  // Nothing on the page is newer than its date, so an old page is not green.
  const hours = (Date.now() - Date.parse(fleet.about.date.replace(" UTC", "Z").replace(" ", "T"))) / 36e5;
  if (hours >= 1) {
    const [count, unit] = hours < 48 ? [Math.floor(hours), "hour"] : [Math.floor(hours / 24), "day"];
    const age = document.getElementById("age");
    age.textContent = `This page is ${count} ${unit}${count === 1 ? "" : "s"} old. The hosts may have changed since.`;
    age.hidden = false;
    document.getElementById("verdict").classList.toggle("old", hours >= 24);
  }

  // On a phone, a row is a list of its cells. The roles stay, which a browser drops with the layout of a table.
  for (const table of document.querySelectorAll(".wide > table")) {
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    table.classList.add("stacked");
    table.setAttribute("role", "table");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      for (const cell of row.cells) {
        const scope = cell.getAttribute("scope");
        cell.setAttribute("role", scope === "row" ? "rowheader" : scope ? "columnheader" : "cell");
        if (!scope && cell.textContent.trim()) cell.dataset.label = heads[cell.cellIndex];
      }
    }
  }

  const finder = document.getElementById("finder");
  if (finder) {
    const list = document.getElementById("list");
    const inventory = [...list.children];
    const texts = new Map(inventory.map((host) => [host, host.dataset.words.toLowerCase()]));
    const worst = ["refused", "unread", "drift", "changes", "good", "idle"];
    const field = (name) => document.getElementById(name);
    const number = new Intl.Collator("en", { numeric: true });
    const orders = {
      inventory: () => 0,
      worst: (one, other) => worst.indexOf(one.dataset.state) - worst.indexOf(other.dataset.state),
      down: (one, other) => other.dataset.down - one.dataset.down,
      name: (one, other) => number.compare(one.dataset.name, other.dataset.name),
    };
    const show = () => {
      const words = field("words").value.toLowerCase().split(/\s+/).filter(Boolean);
      const state = field("state").value;
      let shown = 0;
      for (const host of inventory) {
        const text = texts.get(host);
        const fits = (!state || host.dataset.state === state) && words.every((word) => text.includes(word));
        host.hidden = !fits;
        shown += fits;
      }
      field("none").hidden = shown > 0;
      field("shown").textContent = shown === inventory.length ? `${shown} hosts` : `${shown} of ${inventory.length} hosts`;
    };
    finder.hidden = false;
    finder.addEventListener("submit", (event) => event.preventDefault());
    field("words").addEventListener("input", show);
    field("state").addEventListener("change", show);
    field("order").addEventListener("change", () => list.append(...[...inventory].sort(orders[field("order").value])));
  }

  const lines = {
    light: ["#2457c5", "#c9572b", "#17724a", "#8250df", "#0f7b8a", "#875500"],
    dark: ["#86aefc", "#f0946b", "#57c795", "#bf9cf7", "#4fc3d4", "#e3ac4a"],
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let drawn = [];
  const draw = (scheme) => {
    drawn.forEach((chart) => chart.destroy());
    const ink = scheme === "dark" ? "#9fa9b5" : "#59626d";
    const grid = { stroke: scheme === "dark" ? "#2b3139" : "#e1e3e6", width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    drawn = [...document.querySelectorAll("[data-chart]")].map((place) => {
      const chart = fleet.charts[place.dataset.chart];
      const series = chart.series.map((one, index) => ({
        label: one.label,
        stroke: lines[scheme][index],
        dash: index > 2 ? [6, 4] : undefined,
        width: 2,
        spanGaps: true,
        points: { show: chart.x.length < 60, size: 6 },
        value: (_, value) => (value === null || value === undefined ? "-" : `${+value.toPrecision(4)} ${chart.unit}`),
      }));
      const first = chart.time ? {} : { label: chart.axis };
      const options = {
        width: Math.max(260, place.clientWidth),
        height: 220,
        scales: { x: { time: chart.time }, y: { range: (_, low, high) => [0, (high || 1) * 1.1] } },
        axes: [axis, { ...axis, size: 56 }],
        series: [first, ...series],
        cursor: { drag: { x: false, y: false } },
      };
      return new uPlot(options, [chart.x, ...chart.series.map((one) => one.values)], place);
    });
  };
  const redraw = () => draw(dark.matches ? "dark" : "light");
  redraw();
  dark.addEventListener("change", redraw);
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 150);
  });

  // On paper nothing can be unfolded, and the paper is white.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => (one.open = true));
    draw("light");
  });
  addEventListener("afterprint", () => {
    folded.forEach((one) => (one.open = false));
    redraw();
  });
})();
