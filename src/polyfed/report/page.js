"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let figures = [];
  const plots = [...document.querySelectorAll(".plot")];
  const touch = matchMedia("(pointer: coarse)").matches;

  // a text in the page, compressed, 13 bits in two letters
  const unpacked = async (held) => {
    const text = held.textContent, bytes = new Uint8Array(Number(held.dataset.bytes)), letters = new Uint8Array(127);
    for (let code = 33, at = 0; code < 127; code++) if (!"<&\\".includes(String.fromCharCode(code))) letters[code] = at++;
    for (let at = 0, bits = 0, rest = 0, to = 0; at < text.length; at += 2) {
      rest = (rest << 13) | (letters[text.charCodeAt(at)] * 91 + letters[text.charCodeAt(at + 1)]);
      for (bits += 13; bits >= 8 && to < bytes.length; ) bytes[to++] = rest >> (bits -= 8);
      rest &= (1 << bits) - 1;
    }
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  };
  const load = async () => {
    const library = document.getElementById("library");
    if (library) {
      const script = document.createElement("script"); // its hash is in the page's policy
      script.textContent = await unpacked(library);
      document.head.append(script);
    }
    figures = JSON.parse(await unpacked(document.getElementById("figures")));
  };

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
    if (!window.Plotly) return;
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
    if (!window.Plotly) return;
    root.toggleAttribute("data-printing", now); // light, and as wide as paper
    plots.forEach(draw); // at once: the printer does not wait
    if (!now) plots.forEach((plot) => Plotly.Plots.resize(plot));
  };
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  load().then(drawAll).catch((error) => {
    const words = document.getElementById("trouble");
    words.textContent = `The figures cannot be drawn: this browser is too old, or the file is damaged (${error}).`;
    words.hidden = false;
  });
})();
