"use strict";
const NARROW = 700; // px: below it the tool bar would cover the legend
const PRINTED_WIDTH = 680; // px: a printed page is narrower than the window, and drawings do not shrink by themselves
const ENTRY = 19; // px, of a legend
const figures = JSON.parse(document.getElementById("figures").textContent);
const options = () => ({
  responsive: true, displayModeBar: innerWidth < NARROW ? false : "hover", displaylogo: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d"],
});
const drawn = new Set();

// Figures name their colours as the style sheet does ("--ink"), so that they change with it.
function coloured(value, key, style) {
  if (typeof value === "string") {
    return value.startsWith("--") && /colou?r|scale/.test(key) ? style.getPropertyValue(value).trim() : value;
  }
  if (Array.isArray(value)) return key === "z" ? value : value.map((entry) => coloured(entry, key, style));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, coloured(entry, name, style)]));
}

function draw(name, width) {
  const { data, layout } = coloured(figures[name], "", getComputedStyle(document.documentElement));
  drawn.add(name);
  // On a narrow screen the entries of the legend stand below each other, and would take the room of the bars.
  if (!width && innerWidth < NARROW) layout.height += ENTRY * data.filter((trace) => trace.name && trace.showlegend !== false).length;
  // Anew, for Plotly.react keeps the margins that another width needed.
  return Plotly.newPlot(name, data, width ? { ...layout, width } : { ...layout, autosize: true }, options());
}

// A figure in a closed fold has no width yet: it waits until somebody opens it.
const folded = (name) => document.getElementById(name).closest("details:not([open])");
const all = Object.keys(figures).filter((name) => document.getElementById(name));
const redraw = () => [...drawn].forEach((name) => draw(name));

function start() {
  all.filter((name) => !folded(name)).forEach((name) => draw(name));
  document.querySelectorAll("details").forEach((fold) => fold.addEventListener("toggle", () => {
    if (fold.open) all.filter((name) => fold.contains(document.getElementById(name)) && !folded(name)).forEach((name) => draw(name));
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // A print is light, and shows what is folded.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((fold) => { fold.open = true; });
    document.documentElement.classList.add("printed");
    all.forEach((name) => draw(name, PRINTED_WIDTH));
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printed");
    opened.forEach((fold) => { fold.open = false; });
    redraw();
  });
}

async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const library = document.createElement("script");
  library.textContent = await new Response(stream).text();
  document.head.append(library);
}

if (typeof DecompressionStream === "undefined") document.getElementById("no-charts").hidden = false;
else unpack().then(start);
