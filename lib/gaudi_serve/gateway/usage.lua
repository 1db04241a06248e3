-- Read by the gateway's HAProxy where usage is counted: requests and tokens by client and model.
-- Each thread has its own Lua and counts for itself. The map is what they share: a line for each thread.
local KEY, LENGTH = '"usage"', 2048 -- where an answer has its token counts, and within how many bytes from there
local folder = debug.getinfo(1, "S").source:match("^@?(.*/)") or "./"
local file, lines = folder .. "usage.map", {}
local shared = Map.new(file, Map._str)
local KINDS = {
  {"requests", "Requests that a server began."},
  {"requests_without_usage", "Begun requests without token counts from the server."},
  {"input_tokens", "Tokens of prompts."},
  {"output_tokens", "Generated tokens."},
  {"output_events", "Events with generated text in streams without their count of generated tokens; each has at least one token."},
}
local NONE = "0,0,0,0,0"

for line in io.lines(folder .. "allowed.map") do
  local client, model = line:match("^([^|]*)|(%S*) ")
  if client then lines[#lines + 1] = {client, model} end
end

-- What the events of streams with generated text have: of chat, messages and responses, and of completions. The first
-- event of chat has only the role.
local DELTA, ROLE, TEXT = '"delta":', '"delta":{"role"', '"text":'
local WORDS = {DELTA, ROLE, TEXT}
local own = {}

local function count(client, model, input, output, events)
  local key = client .. "|" .. model
  local now = own[key] or {0, 0, 0, 0, 0}
  own[key] = now
  now[1] = now[1] + 1
  now[2] = now[2] + (input and 0 or 1)
  now[3] = now[3] + (input or 0)
  now[4] = now[4] + (output or 0)
  now[5] = now[5] + (events or 0)
  core.set_map(file, core.thread .. "|" .. key, table.concat(now, ","))
end

local Usage = {id = "usage", flags = filter.FLT_CFG_FL_HTX}
Usage.__index = Usage

function Usage:new() return setmetatable({rest = "", first = "", usage = "", events = {}}, Usage) end

-- Return how often a word ends in text after position `old`.
local function times(text, word, old)
  local sum, position = 0, math.max(1, old - #word + 2)
  while true do
    local _, stop = text:find(word, position, true)
    if not stop then return sum end
    sum, position = sum + 1, stop + 1
  end
end

function Usage:start_analyze(txn, channel)
  if channel:is_resp() then filter.register_data_filter(self, channel) end
end

-- Keep the first usage, which has the prompt of a stream of /v1/messages, and the last: in streams each may be newer than
-- the one before. In a text its quotes are escaped.
function Usage:http_payload(_, message)
  local data = message:body()
  if not data then return end
  local text, position, last, before = self.rest .. data, 1, nil, nil
  if self.stream == nil and data ~= "" then self.stream = data:find("^%a*:") ~= nil end
  if self.stream then
    for _, word in ipairs(WORDS) do self.events[word] = (self.events[word] or 0) + times(text, word, #self.rest) end
  end
  while position do
    local found, stop = text:find(KEY, position, true)
    if found and text:find('^%s*:%s*{', stop + 1) then
      last, before = found, last
      if self.first == "" then self.first = text:sub(found, found + LENGTH) end
    end
    position = found and stop + 1
  end
  -- What a client that leaves has cut off is not used.
  if last and not text:sub(last, last + LENGTH):find('}', 1, true) then last = before end
  if last then self.usage = text:sub(last, last + LENGTH) end
  self.rest = text:sub(-LENGTH)
end

-- Return the sum of the numbers with these names; nil without the first of them.
local function number(usage, ...)
  local sum
  for place, name in ipairs({...}) do
    local found = tonumber(usage:match('"' .. name .. '"%s*:%s*(%d+)'))
    if place == 1 and not found then return nil end
    sum = (sum or 0) + (found or 0)
  end
  return sum
end

local function prompt(usage)
  return number(usage, "prompt_tokens") or number(usage, "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
end

-- Called for every request before its line in the log, also where its client has left. HAProxy does not call `http_end` then.
function Usage:end_analyze(txn, channel)
  if not channel:is_resp() then return end
  local client, model = txn:get_var("txn.client"), txn:get_var("txn.served")
  -- A request that no server has begun is not counted.
  if not client or not model or txn.sf:srv_name() == "" then return end
  local usage = self.usage
  local input = prompt(usage) or prompt(self.first)
  local output = number(usage, "completion_tokens") or number(usage, "output_tokens")
  local events = 0
  if self.stream and (output or 0) == 0 then
    local deltas = self.events[DELTA]
    events = deltas > 0 and deltas - self.events[ROLE] or self.events[TEXT]
    txn:set_var("txn.output_events", events)
  end
  count(client, model, input, output, events)
  if input then
    txn:set_var("txn.input_tokens", input)
    txn:set_var("txn.output_tokens", output or 0)
  end
end

core.register_filter("usage", Usage, function(class) return class end)

core.register_service("usage", "http", function(applet)
  local text, threads = {}, tonumber(core.get_info()["Nbthread"])
  for number, kind in ipairs(KINDS) do
    local name = "gaudi_gateway_" .. kind[1] .. "_total"
    text[#text + 1] = "# HELP " .. name .. " " .. kind[2]
    text[#text + 1] = "# TYPE " .. name .. " counter"
    for _, line in ipairs(lines) do
      local total = 0
      for thread = 1, threads do
        local found, place = shared:lookup(thread .. "|" .. line[1] .. "|" .. line[2]) or NONE, 0
        for part in found:gmatch("%d+") do
          place = place + 1
          if place == number then total = total + tonumber(part) end
        end
      end
      text[#text + 1] = string.format('%s{client="%s",model="%s"} %d', name, line[1], line[2], total)
    end
  end
  local page = table.concat(text, "\n") .. "\n"
  applet:set_status(200)
  applet:add_header("content-type", "text/plain; version=0.0.4")
  applet:add_header("content-length", #page)
  applet:start_response()
  applet:send(page)
end)
