#pragma once
// The page of report.html; kReportMark is replaced by the run's JSON. No network, no server: it
// opens from a disk.

namespace archipelago::op {

inline constexpr const char* kReportMark = "\"@DATA@\"";

inline constexpr const char* kReportPage = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Archipelago run</title>
<style>
:root { --bg:#fff; --fg:#1b1f24; --dim:#667080; --line:#d8dee6; --card:#f5f7fa; --a:#2563c9; --b:#c2410c;
  --stepping:#2e9e5b; --waiting:#d9a514; --recovering:#2f7fd6; --down:#d64541; }
@media (prefers-color-scheme: dark) { :root { --bg:#14181d; --fg:#e6eaf0; --dim:#93a0b0; --line:#333c47; --card:#1d232b;
  --a:#6ea8ff; --b:#ff9a5c; } }
body { margin:0 auto; padding:24px; max-width:1100px; background:var(--bg); color:var(--fg);
  font:14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size:22px; margin:0 0 4px; } h2 { font-size:15px; margin:28px 0 8px; }
.dim { color:var(--dim); } .cards { display:flex; flex-wrap:wrap; gap:10px; margin:16px 0; }
.card { background:var(--card); border-radius:8px; padding:8px 14px; min-width:104px; }
.card b { display:block; font-size:18px; font-weight:600; } .card span { color:var(--dim); font-size:12px; }
svg { display:block; width:100%; overflow:visible; } svg text { fill:var(--dim); font-size:11px; }
.axis { stroke:var(--line); } .legend { display:flex; gap:16px; font-size:12px; color:var(--dim); flex-wrap:wrap; }
.legend i { display:inline-block; width:11px; height:11px; border-radius:2px; margin-right:5px; vertical-align:-1px; }
table { border-collapse:collapse; width:100%; font-size:13px; } td, th { text-align:right; padding:4px 8px;
  border-bottom:1px solid var(--line); } th { color:var(--dim); font-weight:500; } td:first-child, th:first-child,
  td:nth-child(2), th:nth-child(2) { text-align:left; }
.events { max-height:300px; overflow:auto; font:12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; white-space:pre-wrap; }
#tip { position:fixed; pointer-events:none; background:var(--fg); color:var(--bg); padding:3px 7px; border-radius:4px;
  font-size:12px; display:none; white-space:pre; z-index:2; }
</style></head><body>
<h1 id="title"></h1><div class="dim" id="subtitle"></div><div class="cards" id="cards"></div>
<h2>Loss</h2><div class="legend" id="losslegend"></div><svg id="loss"></svg>
<h2>Islands over time</h2><div class="legend" id="timelegend"></div><svg id="time"></svg>
<h2>Participants per round</h2><svg id="participants"></svg>
<h2>Bytes per global step</h2><div class="legend" id="byteslegend"></div><svg id="bytes"></svg>
<h2>Islands</h2><table id="islands"></table>
<h2>Events</h2><div class="events" id="events"></div><div id="tip"></div>
<noscript>This page draws its charts with JavaScript; summary.json has the same figures.</noscript>
<script>
"use strict";
const data = "@DATA@";
const NS = "http://www.w3.org/2000/svg", W = 1050, L = 56, R = 8;
const css = n => getComputedStyle(document.documentElement).getPropertyValue(n);
const el = (p, n, a, t) => { const e = document.createElementNS(NS, n); for (const k in a) e.setAttribute(k, a[k]);
  if (t !== undefined) e.textContent = t; p.appendChild(e); return e; };
const html = (p, n, t, c) => { const e = document.createElement(n); if (t !== undefined) e.textContent = t;
  if (c) e.className = c; p.appendChild(e); return e; };
const id = n => document.getElementById(n);
const num = (v, d = 3) => v === null || v === undefined || !isFinite(v) ? "–" : Number(v).toFixed(d);
const size = b => { const u = ["B", "kB", "MB", "GB", "TB"]; let i = 0; while (b >= 1000 && i < 4) { b /= 1000; i++; }
  return (i ? b.toFixed(1) : Math.round(b)) + " " + u[i]; };
const clock = s => { s = Math.round(s); const m = Math.floor(s / 60), h = Math.floor(m / 60);
  return (h ? h + ":" + String(m % 60).padStart(2, "0") : m) + ":" + String(s % 60).padStart(2, "0"); };
const nice = (lo, hi, n) => { const raw = (hi - lo) / n || 1, p = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(f => f * p).find(f => f >= raw); const out = [];
  for (let v = Math.ceil(lo / step) * step; v <= hi + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out; };
const times = end => { const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400]
  .find(v => end / v <= 10) || end / 8; const out = []; for (let v = 0; v <= end; v += step) out.push(v); return out; };
const tip = (e, text) => { e.addEventListener("mousemove", m => { const t = id("tip"); t.style.display = "block";
  t.textContent = typeof text === "function" ? text(m) : text;
  t.style.left = Math.min(m.clientX + 12, innerWidth - 260) + "px"; t.style.top = m.clientY + 14 + "px"; });
  e.addEventListener("mouseleave", () => id("tip").style.display = "none"); };
const legend = (where, items) => items.forEach(([c, t]) => { const s = html(id(where), "span");
  const i = html(s, "i"); i.style.background = c; s.appendChild(document.createTextNode(t)); });

// A frame with axes: x in [x0,x1], y in [y0,y1], drawn at height H. Returns its scales.
function frame(svg, H, x0, x1, y0, y1, xl, yl) {
  const B = H - 22, T = 6; svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  const X = v => L + (v - x0) / (x1 - x0 || 1) * (W - L - R), Y = v => B - (v - y0) / (y1 - y0 || 1) * (B - T);
  for (const v of nice(y0, y1, 4)) { el(svg, "line", {x1:L, x2:W-R, y1:Y(v), y2:Y(v), class:"axis"});
    el(svg, "text", {x:L-6, y:Y(v)+4, "text-anchor":"end"}, yl(v)); }
  for (const v of nice(x0, x1, 8)) el(svg, "text", {x:X(v), y:H-6, "text-anchor":"middle"}, xl(v));
  return {X, Y, B, T};
}
function line(svg, f, points, color, width = 1.5) {
  if (points.length) el(svg, "path", {d:"M" + points.map(p => f.X(p[0]).toFixed(1) + "," + f.Y(p[1]).toFixed(1)).join("L"),
    fill:"none", stroke:color, "stroke-width":width, "stroke-linejoin":"round"});
}
function none(svg, text) { svg.setAttribute("viewBox", `0 0 ${W} 30`); el(svg, "text", {x:L, y:20}, text); }
function hover(svg, f, H, points, text) {
  if (!points.length) return;
  const mark = el(svg, "line", {y1:f.T, y2:f.B, stroke:css("--dim"), "stroke-dasharray":"2,3", visibility:"hidden"});
  const area = el(svg, "rect", {x:L, y:0, width:W-L-R, height:H, fill:"transparent"});
  tip(area, m => { const box = svg.getBoundingClientRect(), x = (m.clientX - box.left) / box.width * W;
    let best = points[0]; for (const p of points) if (Math.abs(f.X(p[0]) - x) < Math.abs(f.X(best[0]) - x)) best = p;
    mark.setAttribute("x1", f.X(best[0])); mark.setAttribute("x2", f.X(best[0])); mark.setAttribute("visibility", "visible");
    return text(best); });
  area.addEventListener("mouseleave", () => mark.setAttribute("visibility", "hidden"));
}

const s = data.summary, m = data.metrics, A = css("--a"), Bc = css("--b");
document.title = data.run + " – Archipelago run";
id("title").textContent = data.run;
id("subtitle").textContent = `${s.phase} at global step ${s.globalStep} of ${s.budget} after ${clock(s.elapsedSeconds)}; run ${s.runId || ""}`;
[["validation loss", num(s.validationLoss)], ["training loss", num(s.trainLoss)], ["goodput", num(s.goodput)],
 ["useful goodput", num(s.usefulGoodput)], ["uptime", num(s.uptime)], ["merged fraction", num(s.mergedFraction)],
 ["mean participants", num(s.outerOptimizer.meanParticipants, 2)], ["tokens", Number(s.tokens).toLocaleString("en")],
 ["sent up", size(s.bytesUp)], ["sent down", size(s.bytesDown)],
 ["exchange overhead", s.exchangeOverhead === null ? "–" : (100 * s.exchangeOverhead).toFixed(2) + " %"]]
  .forEach(([k, v]) => { const c = html(id("cards"), "div", undefined, "card"); html(c, "b", v); html(c, "span", k); });

{ const svg = id("loss"), train = m.filter(p => p[1] !== null).map(p => [p[0], p[1]]),
    val = m.filter(p => p[2] !== null).map(p => [p[6], p[2]]), all = train.concat(val).map(p => p[1]);
  if (!all.length) none(svg, "no losses were recorded"); else {
    const lo = Math.min(...all), hi = Math.max(...all), steps = train.concat(val).map(p => p[0]);
    const f = frame(svg, 260, Math.min(...steps), Math.max(...steps), lo - (hi - lo) * .05, hi, v => v, v => v.toFixed(1));
    line(svg, f, train, A, 1.2); line(svg, f, val, Bc, 2);
    val.forEach(p => el(svg, "circle", {cx:f.X(p[0]), cy:f.Y(p[1]), r:2.6, fill:Bc}));
    hover(svg, f, 260, train.length ? train : val, p => `step ${p[0]}\nloss ${num(p[1], 4)}`);
    legend("losslegend", [[A, "training"], [Bc, "validation"]]); } }

{ const svg = id("time"), names = Object.keys(data.timeline), states = ["stepping", "waiting", "recovering", "down"];
  legend("timelegend", states.map(n => [css("--" + n), n]).concat([[css("--fg"), "chaos"]]));
  const rows = names.length, H = rows * 26 + 40, end = Math.max(s.elapsedSeconds, 1e-9);
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  const left = 120, X = t => left + t / end * (W - left - R);
  names.forEach((n, i) => { const y = 8 + i * 26;
    el(svg, "text", {x:left-8, y:y+13, "text-anchor":"end"}, n);
    for (const [from, to, state, inc] of data.timeline[n]) {
      const r = el(svg, "rect", {x:X(from), y, width:Math.max(.4, X(to)-X(from)), height:18, fill:css("--" + states[state])});
      tip(r, `${n} #${inc}: ${states[state]}\n${clock(from)} – ${clock(to)} (${(to-from).toFixed(1)} s)`); } });
  for (const e of data.events) if (e[3]) { const i = names.indexOf(e[1]), y = i < 0 ? 4 : 4 + i * 26, h = i < 0 ? rows * 26 : 26;
    const g = el(svg, "g", {}); el(g, "line", {x1:X(e[0]), x2:X(e[0]), y1:y, y2:y+h, stroke:css("--fg"), "stroke-width":1.4});
    el(g, "circle", {cx:X(e[0]), cy:y, r:3.4, fill:css("--fg")}); tip(g, `${clock(e[0])} ${e[2]}`); }
  for (const v of times(end)) el(svg, "text", {x:X(v), y:H-6, "text-anchor":"middle"}, clock(v)); }

{ const svg = id("participants"), pts = m.filter(p => p[3] !== null).map(p => [p[0], p[3]]);
  if (!pts.length) none(svg, "no rounds were recorded"); else {
    const hi = Math.max(1, ...pts.map(p => p[1]), Object.keys(data.timeline).length);
    const f = frame(svg, 130, pts[0][0], pts[pts.length-1][0], 0, hi, v => v, v => Number.isInteger(v) ? v : "");
    const w = Math.max(.5, (W - L - R) / pts.length);
    for (const p of pts) el(svg, "rect", {x:f.X(p[0]) - w/2, y:f.Y(p[1]), width:w, height:f.B - f.Y(p[1]), fill:A});
    hover(svg, f, 130, pts, p => `step ${p[0]}: ${p[1]} participants`); } }

{ const svg = id("bytes"), up = m.filter(p => p[4] !== null).map(p => [p[0], p[4]]),
    down = m.filter(p => p[5] !== null).map(p => [p[0], p[5]]), all = up.concat(down);
  if (!all.length) none(svg, "no transfers were recorded"); else {
    const xs = all.map(p => p[0]), f = frame(svg, 150, Math.min(...xs), Math.max(...xs), 0, Math.max(1, ...all.map(p => p[1])), v => v, size);
    line(svg, f, up, A, 1.1); line(svg, f, down, Bc, 1.1); legend("byteslegend", [[A, "up"], [Bc, "down"]]);
    hover(svg, f, 150, m.filter(p => p[4] !== null || p[5] !== null), p => `step ${p[0]}\nup ${size(p[4] || 0)}\ndown ${size(p[5] || 0)}`); } }

{ const t = id("islands"), head = html(t, "tr");
  ["island", "datacenter", "incarnations", "steps", "tokens", "merged rounds", "restarts", "disruptions", "recovery s"].forEach(h => html(head, "th", h));
  for (const l of s.learners) { const r = html(t, "tr");
    [l.name, l.datacenter, l.incarnations, l.steps, Number(l.tokens).toLocaleString("en"), l.mergedRounds, l.restarts, l.disruptions,
     l.recoverySeconds.map(v => num(v, 2)).join(", ") || "–"].forEach(v => html(r, "td", v)); } }
id("events").textContent = data.events.map(e => clock(e[0]).padStart(8) + "  " + (e[1] || "").padEnd(16) + e[2]).join("\n") || "none";
</script></body></html>
)html";

}  // namespace archipelago::op
