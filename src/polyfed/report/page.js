"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const touch = matchMedia("(pointer: coarse)").matches;

  // "--tint-3 0.2" is a colour of the page, with its strength
  const colour = (words, style) => {
    const [name, strength] = words.split(" ");
    const hex = style.getPropertyValue(name).trim();
    if (!strength) return hex;
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${strength})`;
  };
  const filled = (value, style) => {
    if (typeof value === "string") return value.startsWith("--") ? colour(value, style) : value;
    if (Array.isArray(value)) return value.map((one) => filled(one, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, filled(one, style)]));
  };

  const hidden = (plot) =>
    new Set(
      [...plot.closest(".chart").querySelectorAll('.legend [aria-pressed="false"]')].map((b) => b.dataset.series),
    );
  const draw = (plot) => {
    const figure = filled(figures[plot.dataset.figure], getComputedStyle(root));
    const gone = hidden(plot);
    for (const trace of figure.data) trace.visible = !gone.has(trace.meta);
    if (root.hasAttribute("data-printing")) figure.layout.width = plot.clientWidth;
    if (touch) figure.layout.dragmode = false; // a finger scrolls the page
    return Plotly.react(plot, figure.data, figure.layout, { displayModeBar: false, responsive: true });
  };
  const drawAll = async () => {
    delete document.body.dataset.drawn;
    for (const plot of plots) await draw(plot);
    document.body.dataset.drawn = "all";
  };

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "true" ? "false" : "true");
      button.closest(".chart").querySelectorAll(".plot").forEach(draw);
    });
  }
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    drawAll();
  });
  dark.addEventListener("change", drawAll);
  const printing = (now) => {
    root.toggleAttribute("data-printing", now); // light, and as wide as paper
    plots.forEach(draw); // at once: the printer does not wait
    if (!now) plots.forEach((plot) => Plotly.Plots.resize(plot));
  };
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  drawAll();
})();
