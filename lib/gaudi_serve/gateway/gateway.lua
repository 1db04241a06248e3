-- Read by the gateway's HAProxy: what its own language cannot find in requests and answers.
local TEXT = 16384 -- bytes of a request's texts that distinguish conversations
local PREFIX = 512 -- bytes of a prompt that make it the same as another one
local HEADERS, PARTS = 1024, 64 -- bytes of the headers of a form's part, and parts of a form, that are searched
local FAILURES = 10 -- failed answers in a row after which a server is ejected
local FIRST_S, LAST_S = 10, 300 -- shortest and longest ejection; each is twice as long as the one before
local FORGET_S = 600 -- time without an ejection after which the next one is the shortest again
-- What threads share: by server its failures, and by client its last good answer; by server the end of its ejection.
local folder = debug.getinfo(1, "S").source:match("^@?(.*/)") or "./"
local failed, ejected = folder .. "failed.map", folder .. "ejected.map"
local failures, ejections = Map.new(failed, Map._str), Map.new(ejected, Map._str)

local QUOTE, OPEN, CLOSE, LIST = ('"{}['):byte(1, 4)

-- Return where a string of JSON ends that begins at a position, or nil.
local function string_end(text, at)
  local position = at + 1
  while true do
    local found = text:find('[\\"]', position)
    if not found or text:byte(found) == QUOTE then return found end
    position = found + 2
  end
end

-- Return where an object or array of JSON ends that begins at a position, or nil.
local function closing(text, at)
  local depth, position = 0, at
  while true do
    local found = text:find('["{}%[%]]', position)
    if not found then return nil end
    local sign = text:byte(found)
    if sign == QUOTE then
      found = string_end(text, found)
      if not found then return nil end
    elseif sign == OPEN or sign == LIST then
      depth = depth + 1
    else
      depth = depth - 1
      if depth == 0 then return found end
    end
    position = found + 1
  end
end

-- Read the outermost object as far as it is there: key, begin and end of value, three entries a key. A number has no end
-- (false), nor has what is cut off. `last` is the end of the object, where it is complete.
local function read(text)
  local found, position = {}, (text:match('^%s*()%{') or #text) + 1
  while position do
    local start = text:find('["{%[}]', position)
    local sign = start and text:byte(start)
    if not start or sign == CLOSE then return found, start end
    local stop = (sign == QUOTE and string_end or closing)(text, start)
    local value = sign == QUOTE and stop and text:match('^%s*:%s*()', stop + 1)
    position = stop and stop + 1
    if sign == QUOTE and not value then return found end
    if value then
      local begin = text:byte(value)
      local ends = begin == QUOTE and string_end or (begin == OPEN or begin == LIST) and closing
      local last = ends and ends(text, value) or false
      if ends then position = last and last + 1 else position = value end
      local count = #found
      found[count + 1], found[count + 2], found[count + 3] = text:sub(start + 1, stop - 1), value, last
    end
  end
  return found
end

-- Return a function over what `read` found, and the end of the object. Several ask for one body, which is read once.
local body_read, found_read, last_read
local function keys(text)
  if text ~= body_read then
    body_read, found_read, last_read = text, read(text)
  end
  local found, place = found_read, -2
  return function()
    place = place + 3
    return found[place], found[place + 1], found[place + 2]
  end, last_read
end

-- Return a string of JSON without escaped slashes, which some clients write; nil where the value is none.
local function plain(text, value, last)
  if last and text:byte(value) == QUOTE then return (text:sub(value + 1, last - 1):gsub('\\/', '/')) end
end

-- The model of a body that is plain JSON and complete, and names it once; nothing where a server could read another one.
core.register_converters("only_model", function(body)
  if body:find('%z') then return "" end
  local each, stop = keys(body)
  local name
  for key, value, last in each do
    if key:find('\\', 1, true) then return "" end
    if key == "model" then
      local found = plain(body, value, last)
      if name or not found or found:find('\\', 1, true) then return "" end
      name = found
    end
  end
  return stop and not body:find('[^%s]', stop + 1) and name or ""
end)

-- The model of a body in which slashes are escaped.
core.register_converters("escaped_model", function(body)
  for key, value, last in keys(body) do
    local name = key == "model" and plain(body, value, last)
    if name then return name end
  end
  return ""
end)

-- The response that a body goes on from; no id where a server could read another one.
core.register_converters("previous_response", function(body)
  local id = ""
  for key, value, last in keys(body) do
    if key:find('\\', 1, true) then return "?" end
    if key == "previous_response_id" and (last or id ~= "" or body:sub(value, value + 3) ~= "null") then
      id = id == "" and plain(body, value, last) or "?"
    end
  end
  return id
end)

-- Whether an answer to a body is stored: "no", "yes", or nothing where a server could read the body in another way, or where
-- the body chooses the id of the answer, which may be that of another client's.
core.register_converters("stores", function(body)
  if body:find('%z') then return "" end
  local each, stop = keys(body)
  local stores
  for key, value in each do
    if key:find('\\', 1, true) or key == "request_id" then return "" end
    if key == "store" then
      if stores then return "" end
      stores = body:match('^true%f[^%a]', value) and "yes" or "no"
    end
  end
  return stop and not body:find('[^%s]', stop + 1) and (stores or "yes") or ""
end)

-- The name of a form's field by the headers of its part.
local function field(headers)
  for line in headers:gmatch("[^\r\n]+") do
    local said = line:lower():find("content-disposition:", 1, true) == 1 and line:match(";%s*[nN][aA][mM][eE]=(.*)")
    if said then return said:match('^"([^"]*)"') or said:match("^[^;%s]*") end
  end
end

-- The field `model` of a form. Its first line is what stands between its parts.
core.register_converters("form_model", function(body)
  local delimiter = body:sub(1, 80):match("^%-%-[^\r\n]+")
  local first = delimiter and #delimiter + 1
  for _ = 1, delimiter and PARTS or 0 do
    local window = body:sub(first, first + HEADERS)
    local last = window:find("\r\n\r\n", 1, true)
    if not last then return "" end
    local start = first + last + 3
    if field(window:sub(1, last)) == "model" then return body:sub(start, start + HEADERS):match("^([^\r\n]*)\r\n") or "" end
    local _, stop = body:find("\r\n" .. delimiter, start - 2, true)
    if not stop then return "" end
    first = stop + 1
  end
  return ""
end)

-- The id of a stored response.
core.register_converters("response_id", function(body)
  return body:match('"id"%s*:%s*"(resp_[%w_-]+)"') or ""
end)

-- Return the JSON of a request's texts, in the order in which servers put them together.
local function texts(body)
  local found, parts = {}, {}
  for key, value, last in keys(body) do
    if body:find('^["{%[]', value) then found[key] = body:sub(value, math.min(last or #body, value + TEXT)) end
  end
  for _, key in ipairs({"system", "instructions", "messages", "prompt", "input"}) do
    if found[key] then parts[#parts + 1] = found[key] end
  end
  return parts
end

-- The beginning of a prompt.
core.register_converters("prefix", function(body) return table.concat(texts(body)):sub(1, PREFIX) end)

-- What stays the same in all requests of a conversation: its messages up to the first of the user.
core.register_converters("session", function(body)
  local text = table.concat(texts(body))
  local first = text:find('%[%s*{')
  if not first then return text:sub(1, PREFIX) end
  local position = first + 1
  while true do
    local start = text:find('{', position, true)
    local last = start and closing(text, start)
    if not last then return text:sub(1, PREFIX) end
    if text:sub(start, last):find('"role"%s*:%s*"user"') then return text:sub(1, last) end
    position = last + 1
  end
end)

-- Return whether another server of the same model gets requests.
local function others_up(servers, name)
  for other, server in pairs(servers) do
    if other ~= name and server:get_stats().status:find("^UP") then return true end
  end
  return false
end

local function now()
  local time = core.now()
  return time.sec + time.usec / 1000000
end

-- Count an answer, "backend server status client begun". `least`: failures of other clients than the first one that an
-- ejection needs, unless that client had a good answer of another server meanwhile. An ejected server gets no new requests,
-- then one at a time until one succeeds; the first that fails ejects it again, for twice as long. No session is cut, and
-- the last server that gets requests is never ejected.
core.register_converters("judge", function(answer, least)
  local backend, name, status, client, begun = answer:match("^(%S+) (%S+) (%d+) (%S+) (%d+)$")
  status = tonumber(status)
  if not status or status < 200 or status == 501 or status == 505 or status >= 400 and status < 500 then return "" end
  local key, time, fields = backend .. "/" .. name, now(), {}
  -- The client that failed first; its failures since the last good answer and those of others; when they began; length of
  -- the last ejection and its end; and the requests that the server takes.
  for field in (failures:lookup(key) or client .. " 0 0 0 0 0 0"):gmatch("%S+") do fields[#fields + 1] = field end
  local first, own, others, since = fields[1], tonumber(fields[2]), tonumber(fields[3]), tonumber(fields[4])
  local length, ends, takes = tonumber(fields[5]), tonumber(fields[6]), tonumber(fields[7])
  local function save()
    core.set_map(failed, key, string.format("%s %d %d %.6f %d %d %d", first, own, others, since, length, ends, takes))
  end
  local servers, tried = core.backends[backend].servers, ejections:lookup(key)
  if status < 400 then
    if failures:lookup(backend) then core.set_map(failed, backend .. " " .. client, string.format("%.6f", time)) end
    -- What was begun before does not show the server as it is now.
    if tonumber(begun) < ends then return "" end
    if tried then
      core.del_map(ejected, key)
      servers[name]:set_maxconn(takes)
    end
    if own + others > 0 then
      own, others = 0, 0
      save()
    end
    return ""
  end
  if time < ends then return "" end
  if own + others == 0 then
    first, since = client, time
    core.set_map(failed, backend, "failing")
  end
  own, others = own + (client == first and 1 or 0), others + (client == first and 0 or 1)
  local enough = tried and 1 or FAILURES
  local good = tonumber(failures:lookup(backend .. " " .. first) or 0)
  local blamed = math.min(own, others) >= math.min(tonumber(least), enough) or good > since
  local out = own + others >= enough and blamed and others_up(servers, name)
  if out then
    if not tried then takes = tonumber(servers[name]:get_stats().slim) end
    length = (length == 0 or time > ends + FORGET_S) and FIRST_S or math.min(2 * length, LAST_S)
    own, others, ends = 0, 0, math.floor(time) + length
    core.set_map(ejected, key, tostring(ends))
    servers[name]:check_force_nolb()
    servers[name]:set_maxconn(1)
  end
  save()
  return out and "out" or ""
end)

-- Set how long a server may be silent, in milliseconds: some seconds; one more for each KiB of the body, which is a prompt; and
-- where the answer comes in one piece, one more for each token that it may have, by default an hour.
local LONGEST_S = 3600
local LIMITS = {max_tokens = true, max_completion_tokens = true, max_output_tokens = true}
core.register_action("patience", {"http-req"}, function(txn, seconds)
  local total = tonumber(seconds) + (txn:get_var("txn.size") or 0) / 1024
  local path = txn.sf:path()
  if path:find("completions$") or path == "/v1/responses" or path == "/v1/messages" then
    local body, tokens, streamed = txn.sf:req_body(), LONGEST_S, false
    for key, value in keys(body) do
      if key == "stream" then streamed = body:find('^true', value) ~= nil end
      if LIMITS[key] then tokens = tonumber(body:match('^%d+', value)) or tokens end
    end
    if not streamed then total = total + tokens end
  end
  txn:set_var("txn.patience", math.floor(1000 * math.min(total, LONGEST_S)))
end, 1)

-- A body that is larger than the buffer arrives while its request has a place at a server. HAProxy itself has no limit for
-- a client that is silent meanwhile. The filter records when a piece arrives, and the action waits for the next one.
local RATE = 16384 -- bytes a second that a body needs on average
local Upload = {id = "upload", flags = filter.FLT_CFG_FL_HTX}
Upload.__index = Upload

function Upload:new() return setmetatable({}, Upload) end

function Upload:http_headers(txn, message)
  if not message:is_resp() and txn:get_var("txn.large") then filter.register_data_filter(self, message.channel) end
end

function Upload:http_payload(txn, message)
  txn:set_var("txn.piece", math.floor(now() * 1000))
end

function Upload:http_end(txn, message)
  if not message:is_resp() then txn:set_var("txn.arrived", true) end
end

core.register_filter("upload", Upload, function(class) return class end)

-- Wait until a body has arrived or its server answers; end the request of a client that is silent or too slow.
core.register_action("upload", {"tcp-res"}, function(txn, silent_s)
  local begin, silent = now(), tonumber(silent_s)
  local last = begin + silent + (txn:get_var("txn.size") or 0) / RATE
  while not txn:get_var("txn.arrived") and txn.res:input() == 0 do
    local time = now()
    local piece = math.max(begin, (txn:get_var("txn.piece") or 0) / 1000)
    if time > last or time - piece > silent then
      txn:set_var("txn.silent", true)
      return act.DENY
    end
    core.msleep(100)
  end
end, 1)
