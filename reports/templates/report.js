const figures = JSON.parse(document.getElementById("figures").textContent);
// On a narrow screen the tool bar would cover the legend.
const bar = innerWidth < 700 ? false : "hover";
const options = { responsive: true, displayModeBar: bar, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
const drawn = Object.keys(figures).filter((name) => document.getElementById(name));
for (const name of drawn) Plotly.newPlot(name, figures[name].data, figures[name].layout, options);
// A printed page is narrower than the window, and drawings do not shrink by themselves.
const PRINTED_WIDTH = 680;
addEventListener("beforeprint", () => drawn.forEach((name) => Plotly.relayout(name, { width: PRINTED_WIDTH })));
addEventListener("afterprint", () => drawn.forEach((name) => Plotly.relayout(name, { width: null, autosize: true })));
