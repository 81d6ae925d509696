"use strict";
const groups = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";
const SIZE = 460, LEFT = 46, RIGHT = 14, TOP = 26, BOTTOM = 44;
const node = (name, attributes, text) => {
  const element = document.createElementNS(NS, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  return element;
};
const canvas = (target, label, height) => {
  const svg = node("svg", {viewBox: `0 0 ${SIZE} ${height}`, role: "img", "aria-label": label});
  byId(target).replaceChildren(svg);
  return svg;
};
const options = (select, names, chosen) => {
  select.replaceChildren(...names.map((name, i) => new Option(name, i, false, i === chosen)));
};
const unitY = (height, pad) => v => height - BOTTOM - pad - v * (height - TOP - BOTTOM - 2 * pad);
const unitX = pad => v => LEFT + pad + v * (SIZE - LEFT - RIGHT - 2 * pad);
const unitAxis = (svg, height, vertical, pad) => {
  for (let i = 0; i <= 5; i++) {
    const v = i / 5;
    if (vertical) {
      const y = unitY(height, pad)(v);
      svg.append(node("line", {class: "axis", x1: LEFT, x2: SIZE - RIGHT, y1: y, y2: y}));
      svg.append(node("text", {x: LEFT - 6, y: y + 4, "text-anchor": "end"}, v.toFixed(1)));
    } else {
      const x = unitX(pad)(v);
      svg.append(node("line", {class: "axis", x1: x, x2: x, y1: TOP, y2: height - BOTTOM}));
      svg.append(node("text", {x: x, y: height - BOTTOM + 17, "text-anchor": "middle"}, v.toFixed(1)));
    }
  }
};
const shapes = {
  circle: (x, y) => `M${x - 5},${y}a5,5 0 1,0 10,0a5,5 0 1,0 -10,0`,
  square: (x, y) => `M${x - 4.5},${y - 4.5}h9v9h-9z`,
  triangle: (x, y) => `M${x},${y - 6}l5.5,10h-11z`,
  diamond: (x, y) => `M${x},${y - 6}l6,6l-6,6l-6,-6z`,
};
const shapeNames = Object.keys(shapes);

function scatter(group, a, b) {
  const first = group.systems[a], second = group.systems[b];
  const svg = canvas("scatter", `${group.metric} of each query: ${first.name} against ${second.name}`, SIZE);
  const pad = 16;  // room for the dots at 0 and 1
  unitAxis(svg, SIZE, true, pad); unitAxis(svg, SIZE, false, pad);
  const X = unitX(pad), Y = unitY(SIZE, pad);
  svg.append(node("line", {class: "diagonal", x1: X(0), y1: Y(0), x2: X(1), y2: Y(1)}));
  const places = new Map();
  let wins = 0, losses = 0;
  group.queries.forEach((query, i) => {
    const x = first.values[i], y = second.values[i];
    if (y > x) wins++; else if (y < x) losses++;
    const key = x + "," + y;
    if (!places.has(key)) places.set(key, {x, y, queries: []});
    places.get(key).queries.push(query);
  });
  const largest = Math.max(1, ...[...places.values()].map(place => place.queries.length));
  for (const {x, y, queries} of places.values()) {
    const color = y > x ? "var(--c2)" : y < x ? "var(--c1)" : "var(--c7)";
    const radius = 3 + 11 * Math.sqrt((queries.length - 1) / largest);
    const dot = node("circle", {cx: X(x), cy: Y(y), r: radius, fill: color, "fill-opacity": 0.55, stroke: color});
    const some = queries.slice(0, 8).join(", ") + (queries.length > 8 ? ", ..." : "");
    const place = `(${x.toFixed(3)}, ${y.toFixed(3)})`;
    dot.append(node("title", {}, `${queries.length} of ${group.queries.length} queries at ${place}: ${some}`));
    svg.append(dot);
  }
  const middle = (LEFT + SIZE - RIGHT) / 2;
  svg.append(node("text", {class: "strong", x: middle, y: SIZE - 8, "text-anchor": "middle"}, first.name));
  svg.append(node("text", {class: "strong", x: LEFT, y: 15}, second.name));
  const ties = group.queries.length - wins - losses;
  byId("scatter-text").textContent =
    `${group.metric} per query; larger dots are several queries at one point. Above the diagonal ` +
    `${second.name} is better (${wins} queries), below ${first.name} (${losses}); ${ties} ties.`;
}

function lengthBins(group) {
  const known = group.words.map((words, i) => [words, i]).filter(pair => pair[0] !== null);
  known.sort((p, q) => p[0] - q[0]);
  const count = Math.max(1, Math.min(6, Math.floor(known.length / 10)));
  const bins = [];
  for (let b = 0; b < count; b++) {
    const edge = i => Math.round(i * known.length / count);
    const members = known.slice(edge(b), edge(b + 1));
    if (!members.length) continue;
    bins.push({low: members[0][0], high: members[members.length - 1][0], queries: members.map(m => m[1])});
  }
  return bins;
}

function lengths(group) {
  const bins = lengthBins(group), legend = 20 * group.systems.length, height = SIZE + legend;
  const svg = canvas("lengths", `Mean ${group.metric} by length of the relevant documents`, height);
  const bottom = height - legend;
  unitAxis(svg, bottom, true, 0);
  const X = i => LEFT + (i + 0.5) / bins.length * (SIZE - LEFT - RIGHT);
  const Y = unitY(bottom, 0);
  bins.forEach((bin, i) => {
    const low = Math.round(bin.low).toLocaleString("en"), high = Math.round(bin.high).toLocaleString("en");
    const place = {x: X(i), y: bottom - BOTTOM + 17, "text-anchor": "middle", style: "font-size:10px"};
    svg.append(node("text", place, low === high ? low : `${low}-${high}`));
  });
  const middle = {class: "strong", x: (LEFT + SIZE - RIGHT) / 2, y: bottom - 8, "text-anchor": "middle"};
  svg.append(node("text", middle, "words in the relevant documents"));
  svg.append(node("text", {class: "strong", x: LEFT, y: 15}, `mean ${group.metric}`));
  group.systems.forEach((system, s) => {
    const color = `var(--c${s % 8})`, shape = shapes[shapeNames[s % shapeNames.length]];
    const means = bins.map(bin => bin.queries.reduce((sum, q) => sum + system.values[q], 0) / bin.queries.length);
    const points = means.map((mean, i) => `${X(i)},${Y(mean)}`).join(" ");
    svg.append(node("polyline", {points, fill: "none", stroke: color, "stroke-width": 2}));
    means.forEach((mean, i) => {
      const mark = node("path", {d: shape(X(i), Y(mean)), fill: color});
      mark.append(node("title", {}, `${system.name}: ${mean.toFixed(4)} over ${bins[i].queries.length} queries`));
      svg.append(mark);
    });
    const y = bottom + 12 + 20 * s;
    svg.append(node("path", {d: shape(LEFT + 6, y - 4), fill: color}));
    svg.append(node("text", {x: LEFT + 18, y}, system.name));
  });
  byId("lengths-text").textContent =
    `Queries in ${bins.length} groups of equal size by the mean length of their relevant documents: ` +
    "where long documents hurt or help.";
}

function draw() {
  const group = groups[byId("group").value];
  scatter(group, +byId("first").value, +byId("second").value);
  lengths(group);
}
function choose() {
  const names = groups[byId("group").value].systems.map(system => system.name);
  options(byId("first"), names, 0);
  options(byId("second"), names, Math.min(1, names.length - 1));
  draw();
}
if (groups.length) {
  options(byId("group"), groups.map(group => group.name), 0);
  byId("group").addEventListener("change", choose);
  byId("first").addEventListener("change", draw);
  byId("second").addEventListener("change", draw);
  choose();
}
