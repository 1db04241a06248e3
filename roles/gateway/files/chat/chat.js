// The chat page for the models of a site. It sends requests only to the address that it came from. The gateway there
// knows the user, so the page has no key.
"use strict";

const SLOW_S = 15;           // after this time without an answer the page shows a hint
const LARGEST_SIDE = 1536;   // largest side of a sent picture, in pixels
const KEPT = "conversation";
const $ = (id) => document.getElementById(id);
const state = { messages: [], pictures: [], seeing: [], request: null, since: 0, heard: 0, follows: true };

// ---- The server

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { "x-chat-page": "1", "content-type": "application/json" } });
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text;
  try { message = JSON.parse(text).error.message || text; } catch { /* It is not JSON, such as an error page of a proxy. */ }
  const later = answer.headers.get("retry-after");
  throw new Error(`${message.trim() || answer.statusText} (${answer.status})${later ? ` Try again in ${later} s.` : ""}`);
}

// Yields the data of server-sent events.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    state.heard = Date.now();
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}

// The request: the model comes first, because the gateway must find it before any picture.
function request() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const system = $("system").value.trim();
  const messages = state.messages.filter((one) => one.text || one.pictures?.length).map((one) => ({
    role: one.role,
    content: one.pictures?.length
      ? [...one.pictures.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text: one.text }]
      : one.text,
  }));
  return {
    model: $("model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    stream: true,
    stream_options: { include_usage: true },
    temperature: number("temperature"),
    max_tokens: number("tokens"),
  };
}

async function answer() {
  const own = { role: "assistant", text: "", thought: "", model: $("model").value };
  const body = JSON.stringify(request());
  state.messages.push(own);
  state.request = new AbortController();
  state.since = state.heard = Date.now();
  state.follows = true;
  draw();
  let whole = false;
  try {
    const reply = await ask("v1/chat/completions", { method: "POST", body, signal: state.request.signal });
    for await (const data of events(reply.body)) {
      if (data === "[DONE]") { whole = true; continue; }
      take(own, JSON.parse(data));
      drawSoon();
    }
    if (!whole) own.error = "The connection was lost in the middle of the answer.";
  } catch (problem) {
    if (problem.name === "AbortError") own.stopped = true;
    else own.error = problem instanceof TypeError ? "The server cannot be reached, or the connection has ended." : problem.message;
  } finally {
    own.seconds = (Date.now() - state.since) / 1000;
    state.request = null;
    keep();
    draw();
    say(own.error ? "The answer failed." : own.stopped ? "Stopped." : "The answer is complete.");
    $("text").focus();
  }
}

function take(own, event) {
  if (event.error) throw new Error(event.error.message || "The server reports an error.");
  const part = event.choices?.[0];
  const thought = part?.delta?.reasoning_content ?? part?.delta?.reasoning;
  if ((thought || part?.delta?.content) && !own.first) own.first = (Date.now() - state.since) / 1000;
  own.thought += thought || "";
  own.text += part?.delta?.content || "";
  if (part?.finish_reason) own.finish = part.finish_reason;
  if (event.usage) own.tokens = event.usage.completion_tokens;
}

// ---- The view

function element(name, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children.filter((one) => one != null));
  return made;
}

// A model's text as Markdown. It may contain anything, because the prompt may contain foreign texts: HTML stays text, and
// no picture is fetched.
const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
// Markdown would take backslashes, stars and lines from a formula, which stays as the model wrote it.
const FORMULA = /^(?:\\\([^]{1,4000}?\\\)|\\\[[^]{1,4000}?\\\]|\$\$[^]{1,4000}?\$\$|\$(?=[^\s$])[^$\n]*[^\s$\\]\$(?!\d))/;
function formula(level, start, draw) {
  const tokenizer = (text) => {
    const found = FORMULA.exec(text)?.[0];
    return found && (level === "inline" || /^(\\\[|\$\$)/.test(found)) ? { type: `${level}Formula`, raw: found, text: found } : undefined;
  };
  return { name: `${level}Formula`, level, start: (text) => text.match(start)?.index, tokenizer, renderer: ({ text }) => draw(escaped(text)) };
}
marked.use({
  extensions: [formula("block", /^(\\\[|\$\$)/m, (text) => `<pre>${text}</pre>\n`), formula("inline", /\\[([]|\$/, (text) => text)],
  // One ~ means about: ~5 to ~6 minutes.
  tokenizer: { del: (text) => (text.startsWith("~~") ? false : undefined) },
  renderer: {
    html: ({ text }) => escaped(text).replace(/&#60;br\s*\/?&#62;/gi, "<br>"), // the only line break of a table
    image: ({ text, href }) => escaped(`${text} (${href})`),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    // The headings of an answer stand below the one that names who answers.
    heading({ tokens, depth }) {
      const level = Math.min(depth + 3, 6);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>\n`;
    },
  },
});
function markdown(text) {
  const allowed = { FORBID_TAGS: ["img", "style", "form", "input", "button", "audio", "video", "svg", "math"], FORBID_ATTR: ["style", "id", "name", "class"] };
  let html;
  try { html = marked.parse(text); } catch { html = `<pre>${escaped(text)}</pre>`; } // such as 10,000 quotes in each other
  const found = DOMPurify.sanitize(html, { ...allowed, RETURN_DOM_FRAGMENT: true });
  for (const link of found.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  for (const block of found.querySelectorAll("pre")) block.tabIndex = 0;
  return found;
}

function notes(one, last) {
  const said = [];
  if (one.first) said.push(`first word after ${one.first.toFixed(1)} s`);
  if (one.tokens) said.push(`${one.tokens} tokens`);
  const seconds = one.seconds - one.first;
  if (one.tokens > 1 && seconds > 0) said.push(`${((one.tokens - 1) / seconds).toFixed(1)} tokens a second`);
  if (one.finish === "length") said.push("stopped at the length limit");
  if (one.stopped) said.push("stopped");
  const found = element("div", { className: "notes" }, element("span", {}, said.join(" · ")));
  if (one.text) found.append(element("button", { type: "button", onclick: () => copy(one.text) }, "Copy"));
  if (last) found.append(element("button", { type: "button", onclick: again }, "Try again"));
  return found;
}

function drawn(one, last) {
  const running = last && state.request !== null;
  const who = one.role === "user" ? "You" : one.model;
  const text = element("div", { className: "text" });
  if (one.role === "user") text.append(one.text);
  else text.append(markdown(one.text));
  const item = element("li", { className: one.role === "user" ? "own" : "answer" }, element("h3", {}, who));
  if (one.pictures?.length) {
    item.append(element("ul", { className: "pictures" }, ...one.pictures.map((url) =>
      element("li", {}, element("img", { src: url, alt: "A picture that was sent" })))));
  }
  if (one.thought) {
    // Each word draws the answer again; what the user opened or closed stays so.
    const remember = (event) => { one.open = !event.currentTarget.parentElement.open; };
    item.append(element("details", { className: "thought", open: one.open ?? (running && !one.text) },
      element("summary", { onclick: remember }, "Thoughts"), element("div", {}, one.thought)));
  }
  item.append(text);
  if (running) text.classList.add("waiting");
  else if (one.role === "assistant") item.append(notes(one, last));
  if (one.error) item.append(element("p", { className: "error" }, one.error));
  return item;
}

// Draws the changes: all messages, or the last one while it grows.
function draw(only = "all") {
  const list = $("messages"), last = state.messages.length - 1;
  if (only === "last" && list.lastChild) list.replaceChild(drawn(state.messages[last], true), list.lastChild);
  else list.replaceChildren(...state.messages.map((one, number) => drawn(one, number === last)));
  list.setAttribute("aria-busy", String(state.request !== null));
  $("empty").hidden = last >= 0;
  $("export").disabled = last < 0;
  $("send").hidden = state.request !== null;
  $("stop").hidden = state.request === null;
  ready();
  if (state.follows) $("scroll").scrollTop = $("scroll").scrollHeight;
}

let waits = false;
function drawSoon() {
  if (waits) return;
  waits = true;
  requestAnimationFrame(() => { waits = false; if (state.request) draw("last"); });
}

function drawPictures() {
  $("pictures").replaceChildren(...state.pictures.map((url, number) => element("li", {},
    element("img", { src: url, alt: `Picture ${number + 1}, not sent yet` }),
    element("button", { type: "button", onclick: () => { state.pictures.splice(number, 1); drawPictures(); } },
      `Remove picture ${number + 1}`))));
  ready();
}

function say(text) { $("status").textContent = text; }

function sees() { return state.seeing.includes($("model").value); }

function ready() {
  $("send").disabled = $("model").disabled || !($("text").value.trim() || state.pictures.length);
  $("attach").hidden = !sees();
}

// Runs once a second during a request, so that the page shows that it is still waiting.
setInterval(() => {
  if (!state.request) return;
  const silent = Math.round((Date.now() - state.heard) / 1000);
  say(silent < SLOW_S ? "" : `The server has been silent for ${silent} s: it may be busy, or still reading the prompt. Stop ends the request.`);
}, 1000);

// ---- Actions of the user

function send() {
  const text = $("text").value.trim();
  if (state.request || $("send").disabled) return;
  state.messages.push({ role: "user", text, pictures: state.pictures });
  state.pictures = [];
  $("text").value = "";
  grow();
  drawPictures();
  say("");
  answer();
}

function again() {
  while (state.messages.at(-1)?.role === "assistant") state.messages.pop();
  if (state.messages.length) answer();
}

async function copy(text) {
  try { await navigator.clipboard.writeText(text); say("Copied."); } catch { say("The browser does not allow that."); }
}

async function picture(file) {
  const source = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = source;
    await image.decode();
    const part = Math.min(1, LARGEST_SIDE / Math.max(image.naturalWidth, image.naturalHeight));
    const canvas = element("canvas", { width: Math.round(image.naturalWidth * part), height: Math.round(image.naturalHeight * part) });
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#ffffff"; // transparent pixels would become black
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    state.pictures.push(canvas.toDataURL("image/jpeg", 0.9));
    drawPictures();
  } catch {
    say(`${file.name} is not a picture that this browser can read.`);
  } finally {
    URL.revokeObjectURL(source);
  }
}

function pictures(files) {
  const found = [...files].filter((one) => one.type.startsWith("image/"));
  if (found.length && !sees()) say(`${$("model").value} does not take pictures.`);
  else found.forEach(picture);
  return found.length > 0;
}

function exported() {
  const system = $("system").value.trim();
  const parts = state.messages.map((one) => `## ${one.role === "user" ? "You" : one.model}\n\n${one.text}` +
    (one.pictures?.length ? `\n\n(${one.pictures.length} pictures)` : "") + (one.error ? `\n\n(${one.error})` : ""));
  return `# ${document.title}\n\n${system ? `## System prompt\n\n${system}\n\n` : ""}${parts.join("\n\n")}\n`;
}

function download() {
  const url = URL.createObjectURL(new Blob([exported()], { type: "text/markdown" }));
  element("a", { href: url, download: `chat-${new Date().toISOString().slice(0, 16).replace(":", "")}.md` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function grow() {
  $("text").style.height = "auto";
  $("text").style.height = `${$("text").scrollHeight + 2}px`;
}

// ---- The storage of a tab

const SAID = ["model", "system", "temperature", "tokens"];
function keep() {
  const said = Object.fromEntries(SAID.map((id) => [id, $(id).value]));
  const save = (messages) => sessionStorage.setItem(KEPT, JSON.stringify({ said, messages }));
  try { save(state.messages); } catch {
    // Pictures may exceed the storage of a tab.
    try { save(state.messages.map((one) => ({ ...one, pictures: [] }))); } catch { /* The page works without. */ }
  }
}

function kept() {
  try { return JSON.parse(sessionStorage.getItem(KEPT)) || {}; } catch { return {}; }
}

// ---- Start

async function models(wanted) {
  const { data } = await (await ask("v1/models")).json();
  const names = data.filter((one) => one.kinds.includes("text")).map((one) => one.id);
  state.seeing = data.filter((one) => one.kinds.includes("image")).map((one) => one.id);
  if (!names.length) throw new Error("The gateway has no chat model.");
  $("model").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  if (names.includes(wanted)) $("model").value = wanted;
  $("model").disabled = false;
}

async function begin() {
  const before = kept();
  try {
    const settings = await (await ask("settings.json")).json();
    document.title = $("title").textContent = settings.title;
    $("system").value = before.said?.system ?? settings.system_prompt;
    for (const id of ["temperature", "tokens"]) $(id).value = before.said?.[id] ?? "";
    state.messages = before.messages || [];
    await models(before.said?.model);
  } catch (problem) {
    $("model").replaceChildren(element("option", {}, "No model"));
    say(`${problem instanceof TypeError ? "The server cannot be reached." : problem.message} Trying again in 5 s.`);
    setTimeout(begin, 5000);
    return;
  }
  say("");
  draw();
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("stop").addEventListener("click", () => state.request?.abort());
$("text").addEventListener("input", () => { grow(); ready(); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$("text").addEventListener("paste", (event) => { if (pictures(event.clipboardData.files)) event.preventDefault(); });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => { event.preventDefault(); pictures(event.dataTransfer.files); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") state.request?.abort(); });
$("file").addEventListener("change", () => { pictures($("file").files); $("file").value = ""; });
$("model").addEventListener("change", () => { ready(); keep(); });
for (const id of SAID.slice(1)) $(id).addEventListener("change", keep);
$("settings-toggle").addEventListener("click", () => {
  $("settings").hidden = !$("settings").hidden;
  $("settings-toggle").setAttribute("aria-expanded", String(!$("settings").hidden));
});
$("export").addEventListener("click", download);
$("new").addEventListener("click", () => {
  state.request?.abort();
  state.messages = [];
  state.pictures = [];
  keep();
  drawPictures();
  draw();
  say("");
  $("text").focus();
});
$("scroll").addEventListener("scroll", () => {
  const main = $("scroll");
  state.follows = main.scrollHeight - main.scrollTop - main.clientHeight < 40;
});
begin();
