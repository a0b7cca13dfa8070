"use strict";
(() => {
  const QUICK = 2000, SLOW = 10000; // milliseconds between looks, while a run is live and otherwise
  const KEYS = ["method", "data", "tag"];
  const root = document.documentElement;
  const at = (id) => document.getElementById(id);
  const filters = at("filters");
  const chosen = new Set();
  const unfolded = new Set(); // comparisons whose runs are shown
  let listed = { runs: [], comparisons: [], named: [], more: 0 };

  const made = (tag, text = "", kind = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
  const several = (all, word) => `${all.length} ${word}${all.length === 1 ? "" : "s"}`;
  const report = (paths) => `/report?${paths.map((path) => `path=${encodeURIComponent(path)}`).join("&")}`;
  const values = (one, key) => {
    if (key === "method" && one.methods) return one.methods;
    return key === "method" ? [one.method] : String(one[key]).split(", ");
  };

  // ---- one line each

  const cell = (label, content, kind = "") => {
    const td = made("td", "", kind);
    if (label) td.dataset.label = label;
    if (content instanceof Node) td.append(content);
    else td.textContent = content;
    if (!td.textContent && !td.childElementCount) td.classList.add("empty");
    return td;
  };
  const named = (one) => {
    const td = made("td", "", "name"), a = made("a", one.name);
    a.href = report([one.path]);
    td.append(a, made("span", one.state, `state ${one.state}`));
    if (one.path !== one.name) td.append(made("span", one.path, "path"));
    return td;
  };
  const choice = (one) => {
    const box = made("input");
    box.type = "checkbox";
    box.checked = chosen.has(one.path);
    box.setAttribute("aria-label", `choose ${one.name}`);
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(one.path);
      else chosen.delete(one.path);
      showChosen();
    });
    return cell("", box, "choose");
  };
  const progress = (done, all, words) => {
    const span = made("span");
    const bar = made("progress");
    bar.max = all;
    bar.value = done;
    bar.setAttribute("aria-label", words);
    span.append(bar, `${done}/${all}`);
    return span;
  };
  const number = (value, when) => {
    const span = made("span", percent(value));
    if (value !== null && when) span.append(" ", made("small", when));
    return span;
  };
  const curves = (one) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "curves");
    svg.setAttribute("viewBox", "0 0 100 30");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `accuracy by round of ${one.name}`);
    const last = Math.max(1, ...Object.values(one.curves).flat().map(([round]) => round));
    for (const [measure, points] of Object.entries(one.curves)) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const place = ([round, value]) => `${(100 * round) / last},${30 - 30 * value}`;
      path.setAttribute("class", measure);
      path.setAttribute("d", points.length ? `M0,${place(points[0]).split(",")[1]}L${points.map(place).join("L")}` : "");
      svg.append(path);
    }
    return cell("", svg);
  };
  const runLine = (one) => [
    choice(one),
    named(one),
    cell("method", one.method, "word"),
    cell("data", one.data, "word"),
    cell("tag", one.tag, "word"),
    cell("seed", String(one.seed)),
    cell("rounds", progress(one.round, one.rounds, "rounds done")),
    cell("global", number(one.global), "number"),
    cell("personal", number(one.personal, one.when), "number"),
    curves(one),
  ];
  const folded = (one) => {
    const span = progress(one.finished, one.cells, "runs finished");
    const button = made("button", "", "fold");
    const say = () => {
      button.textContent = unfolded.has(one.path) ? "hide" : "show";
      button.setAttribute("aria-expanded", String(unfolded.has(one.path)));
      button.setAttribute("aria-label", `${button.textContent} the runs of ${one.name}`);
    };
    button.type = "button";
    button.addEventListener("click", () => {
      if (!unfolded.delete(one.path)) unfolded.add(one.path);
      say();
      show();
    });
    say();
    span.append(button);
    return span;
  };
  const comparisonLine = (one) => [
    choice(one),
    named(one),
    cell("methods", one.methods.join(", "), "methods"),
    cell("data", one.data, "word"),
    cell("tag", one.tag, "word"),
    cell("runs", folded(one), "runs"),
  ];

  // ---- the page

  const fits = (one) =>
    KEYS.every((key) => !filters[key].value || values(one, key).includes(filters[key].value)) &&
    one.path.toLowerCase().includes(filters.name.value.toLowerCase());
  // a comparison's runs are folded away, unless it was opened, they are live, or somebody looks for something
  const looking = () => [...KEYS, "name"].some((key) => filters[key].value);
  const open = (one) => !one.comparison || one.state === "live" || unfolded.has(one.comparison) || looking();
  const order = (a, b) => (b.state === "live") - (a.state === "live") || b.began - a.began || (a.path < b.path ? -1 : 1);

  const drawn = new Map(); // a line is drawn again only when what it says has changed
  const showLines = (section, all, line) => {
    const fitting = all.filter(fits).sort(order);
    const rows = fitting.map((one) => {
      const key = `${section.id} ${one.path}`, words = JSON.stringify(one);
      const known = drawn.get(key);
      if (known && known.words === words) return known.row;
      const row = known ? known.row : made("tr");
      const [box, ...cells] = line(one);
      if (!known) row.append(box);
      while (row.children.length > 1) row.lastChild.remove(); // the box stays, and with it what is chosen and focused
      row.dataset.path = one.path;
      row.append(...cells);
      drawn.set(key, { row, words });
      return row;
    });
    const body = section.querySelector("tbody");
    if (rows.length !== body.children.length || rows.some((row, i) => row !== body.children[i])) body.replaceChildren(...rows);
    section.hidden = !fitting.length;
    return fitting.length;
  };
  const showNamed = () => {
    const lines = listed.named.map((one) => {
      const li = made("li");
      li.append(made("code", one.path), `: ${one.why}`);
      return li;
    });
    if (listed.more) lines.push(made("li", `and ${listed.more} more`));
    const list = at("named").querySelector("ul");
    if (list.textContent !== lines.map((line) => line.textContent).join("")) list.replaceChildren(...lines);
    at("named").hidden = !lines.length;
  };
  const showChosen = () => {
    const there = new Set([...listed.runs, ...listed.comparisons].map((one) => one.path));
    const paths = [...chosen].filter((path) => there.has(path));
    const bar = at("chosen");
    bar.hidden = !paths.length;
    bar.querySelector("span").textContent = `${paths.length} chosen`;
    bar.querySelector("a").href = report(paths);
    bar.querySelector("a").textContent = paths.length > 1 ? "Compare them" : "Its report";
  };
  const showFilters = () => {
    for (const key of KEYS) {
      const select = filters[key], wanted = select.value || new URLSearchParams(location.search).get(key) || "";
      const found = [...listed.runs, ...listed.comparisons].flatMap((one) => values(one, key)).filter(Boolean);
      const names = [...new Set([...found, wanted])].filter(Boolean).sort();
      if ([...select.options].slice(1).map((option) => option.value).join("\n") === names.join("\n") && select.options.length) continue;
      select.replaceChildren(new Option("all", ""), ...names.map((name) => new Option(name, name)));
      select.value = wanted;
    }
  };
  const show = () => {
    showFilters();
    const comparisons = showLines(at("comparisons"), listed.comparisons, comparisonLine);
    const runs = showLines(at("runs"), listed.runs.filter(open), runLine);
    const away = listed.runs.filter((one) => fits(one) && !open(one));
    at("folded").hidden = !away.length;
    at("folded").textContent = `${several(away, "run")} of comparisons folded away: "show" brings them here.`;
    at("empty").hidden = comparisons + runs > 0;
    showNamed();
    showChosen();
  };
  const follow = async () => {
    let wait = SLOW;
    try {
      const answer = await fetch("/runs.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      listed = await answer.json();
      const live = listed.runs.filter((one) => one.state === "live").length;
      at("root").textContent = listed.root;
      at("facts").textContent =
        `${several(listed.runs, "run")}, ${several(listed.comparisons, "comparison")}, ${live} live · looked at ${listed.time}`;
      if (live) wait = QUICK;
      show();
      document.body.dataset.shown = "all";
    } catch {
      at("facts").textContent = "The server does not answer; start it again with polyfed view.";
    }
    setTimeout(follow, document.hidden ? SLOW : wait);
  };

  filters.name.value = new URLSearchParams(location.search).get("name") || "";
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("input", () => {
    const words = new URLSearchParams([...new FormData(filters)].filter(([, value]) => value));
    history.replaceState(null, "", words.size ? `?${words}` : location.pathname);
    show();
  });
  at("chosen").querySelector("button").addEventListener("click", () => {
    chosen.clear();
    for (const box of document.querySelectorAll("td.choose input")) box.checked = false;
    showChosen();
  });
  at("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
  follow();
})();
