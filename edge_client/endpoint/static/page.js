"use strict";
// The live view: one request at a time, its stream taken apart by whose each token was.

const at = (id) => document.getElementById(id);
const KEPT = 160; // samples of a chart
const EVERY = 200; // milliseconds between two
let running = null; // the AbortController of the answer under way
let figures = null; // what the charts are drawn from

// --- charts -----------------------------------------------------------------------------------

const CHARTS = [
  ["rtt", "Round trip", (v) => `${v.toFixed(1)} ms`],
  ["speed", "Tokens a second", (v) => v.toFixed(1)],
  ["frame", "Draft length", (v) => v.toFixed(0)],
  ["ahead", "Guesses ahead, characters", (v) => v.toFixed(0)],
  ["acceptance", "Accepted of judged", (v) => `${(100 * v).toFixed(0)} %`],
  ["verdict", "Tokens a verdict", (v) => v.toFixed(2)],
  ["up", "Bytes up a token", (v) => v.toFixed(1)],
  ["down", "Bytes down a token", (v) => v.toFixed(1)],
  ["goodput", "Goodput up", (v) => `${(v / 1000).toFixed(0)} kB/s`],
  ["passes", "Target passes a token", (v) => v.toFixed(2)],
];
const series = new Map();

function buildCharts() {
  for (const [name, title, show] of CHARTS) {
    const figure = document.createElement("figure");
    figure.innerHTML =
      "<figcaption></figcaption><output>unknown</output>" +
      '<svg viewBox="0 0 100 30" preserveAspectRatio="none" role="img"><polyline points=""/></svg>';
    figure.querySelector("figcaption").textContent = title;
    figure.id = `chart-${name}`;
    at("charts").append(figure);
    series.set(name, { title, show, figure, values: [] });
  }
}

function sample(name, value) {
  const chart = series.get(name);
  const known = Number.isFinite(value);
  if (known) chart.values.push(value);
  if (chart.values.length > KEPT) chart.values.shift();
  const text = known ? chart.show(value) : chart.values.length ? chart.show(chart.values.at(-1)) : "unknown";
  chart.figure.querySelector("output").textContent = text;
  const svg = chart.figure.querySelector("svg");
  svg.setAttribute("aria-label", `${chart.title}: ${text}`);
  const top = Math.max(...chart.values, 1e-9);
  const step = 100 / Math.max(1, chart.values.length - 1);
  const points = chart.values.map((v, i) => `${(i * step).toFixed(1)},${(29 - (27 * v) / top).toFixed(1)}`);
  svg.firstElementChild.setAttribute("points", points.length > 1 ? points.join(" ") : "");
}

function draw() {
  const f = figures;
  if (!f) return;
  sample("rtt", f.rtt);
  sample("frame", f.frame);
  sample("ahead", f.ahead);
  sample("goodput", f.goodput);
  if (!f.tokens) return;
  const now = performance.now();
  f.recent.push([now, f.tokens]);
  while (f.recent.length > 2 && now - f.recent[0][0] > 2000) f.recent.shift();
  const [since, before] = f.recent[0];
  if (now - since > EVERY) sample("speed", (1000 * (f.tokens - before)) / (now - since));
  sample("acceptance", f.judged ? f.accepted / f.judged : NaN);
  sample("verdict", f.tokens / f.verdicts);
  sample("up", f.up / f.tokens);
  sample("down", f.down / f.tokens);
}

// --- the text ---------------------------------------------------------------------------------

function add(kind, text) {
  if (!text) return;
  const tail = at("text").querySelector(".ahead");
  const last = tail ? tail.previousElementSibling : at("text").lastElementChild;
  if (last && last.className === kind && kind !== "refused") {
    last.textContent += text;
    return;
  }
  const span = document.createElement(kind === "refused" ? "del" : "span");
  span.className = kind;
  span.textContent = text;
  at("text").insertBefore(span, tail);
}

function showAhead(text) {
  let tail = at("text").querySelector(".ahead");
  if (!text) return tail && tail.remove();
  if (!tail) {
    tail = document.createElement("span");
    tail.className = "ahead";
    tail.setAttribute("aria-hidden", "true"); // may change at once: nothing to read aloud
    at("text").append(tail);
  }
  tail.textContent = text;
}

function follow(box, pinned) {
  if (pinned) box.scrollTop = box.scrollHeight;
}

// The guesses that stand ahead are told anew after every verdict; until then what was verified of
// them is cut off in front.
let ahead = "";

function take(trace) {
  const f = figures, box = at("text");
  const pinned = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  f.rtt = trace.rtt_ms ?? f.rtt;
  f.goodput = trace.goodput_up ?? f.goodput;
  f.frame = trace.frame ?? f.frame;
  f.up = trace.bytes_up ?? f.up;
  f.down = trace.bytes_down ?? f.down;
  showMode(trace.mode, trace.frame);
  if (trace.ahead !== undefined) {
    ahead = trace.ahead;
  } else {
    const own = trace.accepted || "";
    add("accepted", own);
    add("refused", trace.refused);
    add("corrected", trace.corrected);
    add("target", trace.target);
    f.tokens += trace.tokens;
    f.verdicts += 1;
    f.accepted += trace.accepted_tokens;
    f.judged += trace.accepted_tokens + (trace.refused ? 1 : 0);
    const said = own + (trace.target || "");
    ahead = !trace.refused && ahead.startsWith(said) ? ahead.slice(said.length) : "";
  }
  f.ahead = ahead.length;
  showAhead(ahead);
  follow(box, pinned);
}

const MODES = { streaming: "Streaming guesses", lockstep: "Lockstep", trying: "Trying again" };

function showMode(mode, frame) {
  if (!mode) return;
  const kind = /^(streaming|lockstep|trying)/.exec(mode);
  at("mode").textContent = kind ? MODES[kind[1]] : frame > 0 ? "Drafting" : "Cloud alone";
  at("reason").textContent = mode;
}

// --- the endpoint -----------------------------------------------------------------------------

function headers() {
  const key = sessionStorage.getItem("outrider-key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function fail(response) {
  if (response.status === 401) {
    at("key-row").hidden = false;
    at("key").focus();
  }
  const said = await response.json().catch(() => null);
  throw new Error(said?.error?.message ?? `status ${response.status}`);
}

function report(text) {
  at("error").hidden = false;
  at("error").textContent = text;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the endpoint closed the stream before its end");
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function asked() {
  const plain = at("plain").checked;
  const text = at("prompt").value;
  const body = {
    stream: true,
    max_tokens: Number(at("tokens").value),
    temperature: Number(at("temperature").value),
    outrider: { draft: at("draft").checked, objective: at("objective").value, trace: true },
    ...(plain ? { prompt: text } : { messages: [{ role: "user", content: text }] }),
  };
  return ["v1/" + (plain ? "completions" : "chat/completions"), body];
}

async function send() {
  if (running || !at("form").reportValidity()) return;
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  at("error").hidden = true;
  at("text").replaceChildren();
  at("summary").textContent = "";
  ahead = "";
  figures = { tokens: 0, verdicts: 0, accepted: 0, judged: 0, up: 0, down: 0, ahead: 0, recent: [] };
  const timer = setInterval(draw, EVERY);
  try {
    const [path, body] = asked();
    const response = await fetch(path, {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
    });
    if (!response.ok) await fail(response);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.outrider) take(chunk.outrider);
      else if (chunk.choices?.[0] && !chunk.choices[0].finish_reason) {
        add("target", chunk.choices[0].text ?? chunk.choices[0].delta?.content ?? "");
      }
      if (chunk.choices?.[0]?.finish_reason) finish(chunk);
    }
  } catch (error) {
    if (error.name === "AbortError") at("summary").textContent = "Stopped.";
    else report(error.message);
  } finally {
    clearInterval(timer);
    showAhead("");
    draw();
    running = null;
    at("send").disabled = false;
    at("stop").disabled = true;
    status();
  }
}

function finish(chunk) {
  const choice = chunk.choices[0], cost = choice.outrider, times = chunk.timings ?? {};
  const tokens = times.predicted_n ?? figures.tokens;
  sample("passes", cost.target_passes / Math.max(1, tokens));
  const parts = [
    `${tokens} tokens (${choice.finish_reason})`,
    `${(times.predicted_per_second ?? 0).toFixed(1)} tokens a second`,
    `first after ${(times.prompt_ms ?? 0).toFixed(0)} ms`,
    `${cost.accepted} of ${cost.drafted} guesses accepted`,
    `${cost.target_passes} target passes`,
    `${cost.bytes_up} bytes up, ${cost.bytes_down} down`,
  ];
  if (cost.degraded) parts.push(`degraded: ${cost.degraded}`);
  at("summary").textContent = parts.join(" · ");
}

let asks = 0; // what was asked for last is what is shown, in whatever order the answers come

async function status() {
  const ask = ++asks;
  try {
    const response = await fetch("status", { headers: headers(), cache: "no-store" });
    if (!response.ok) await fail(response);
    const found = await response.json();
    if (ask === asks) {
      at("about").textContent = `${found.model} · ${found.cloud} · link ${found.link} · ${found.policy}`;
      if (!running) showMode(found.mode, found.frame);
    }
    return found;
  } catch (error) {
    if (ask === asks) at("about").textContent = error.message;
    return null;
  }
}

// --- the link under it, where this is a demonstration ------------------------------------------

async function links() {
  const response = await fetch("demo/link", { headers: headers(), cache: "no-store" });
  if (!response.ok) return;
  const found = await response.json();
  for (const name of found.names) at("link").append(new Option(name, name, false, name === found.current));
  at("link-row").hidden = false;
  at("note").textContent = found.note;
  at("plain").checked = true; // the embedded models have only ever seen plain text
}

async function setLink() {
  const body = JSON.stringify({ name: at("link").value });
  const response = await fetch("demo/link", { method: "POST", headers: headers(), body });
  if (!response.ok) return report("the link could not be changed");
  at("note").dataset.link = (await response.json()).current;
}

// --- wiring -----------------------------------------------------------------------------------

async function begin() {
  const found = await status();
  if (!found) return;
  at("plain").checked = found.model === "embedded-target"; // it has only ever seen plain text
  await links();
}

buildCharts();
at("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("stop").addEventListener("click", () => running?.abort());
at("link").addEventListener("change", setLink);
at("use-key").addEventListener("click", () => {
  sessionStorage.setItem("outrider-key", at("key").value);
  at("key-row").hidden = true;
  begin();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
});
begin();
