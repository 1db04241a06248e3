-- Read by the gateway's HAProxy: what its own language cannot find in requests and answers.
local TEXT = 16384 -- bytes of a request's texts that distinguish conversations
local PREFIX = 512 -- bytes of a prompt that make it the same as another one
local LINE, PARTS = 1024, 64 -- bytes of the headers of a form's part, and parts that are looked at
local TAIL = 4096 -- bytes of an answer's end, where servers write the usage

-- Return where a string of JSON ends that begins at a position, or nil.
local function string_end(text, at)
  local position = at + 1
  while true do
    local found = text:find('[\\"]', position)
    if not found then return nil end
    if text:sub(found, found) == '"' then return found end
    position = found + 2
  end
end

-- Return where an object or array of JSON ends that begins at a position, or nil.
local function closing(text, at)
  local depth, position = 0, at
  while true do
    local found = text:find('["{}%[%]]', position)
    if not found then return nil end
    local sign = text:sub(found, found)
    if sign == '"' then
      found = string_end(text, found)
      if not found then return nil end
    elseif sign == '{' or sign == '[' then
      depth = depth + 1
    else
      depth = depth - 1
      if depth == 0 then return found end
    end
    position = found + 1
  end
end

-- Return a function over key and position of value, for each key of the outermost object, as far as it is there.
local function keys(text)
  local position = (text:match('^%s*()%{') or #text) + 1
  return function()
    while true do
      local found = text:find('["{%[}]', position)
      if not found or text:sub(found, found) == '}' then return nil end
      if text:sub(found, found) ~= '"' then
        local last = closing(text, found)
        if not last then return nil end
        position = last + 1
      else
        local last = string_end(text, found)
        if not last then return nil end
        local value = text:match('^%s*:%s*()', last + 1)
        position = value or last + 1
        if value then return text:sub(found + 1, last - 1), value end
      end
    end
  end
end

-- The model of a body that is plain JSON and complete, and names it once at most: its name, a blank where it names none,
-- or nothing where a server could read another name in it.
core.register_converters("only_model", function(body)
  local start = body:match('^%s*()%{')
  local last = start and closing(body, start)
  if not last or body:find('[^%s]', last + 1) or body:find('%z') then return "" end
  local name = " "
  for key, value in keys(body) do
    if key:find('\\', 1, true) then return "" end
    if key == "model" then
      local stop = body:sub(value, value) == '"' and string_end(body, value)
      local found = stop and body:sub(value + 1, stop - 1):gsub('\\/', '/')
      if name ~= " " or not found or found:find('\\', 1, true) then return "" end
      name = found
    end
  end
  return name
end)

-- The model of a body in which slashes are escaped, as some clients do.
core.register_converters("escaped_model", function(body)
  for key, value in keys(body) do
    local stop = key == "model" and body:sub(value, value) == '"' and string_end(body, value)
    if stop then return (body:sub(value + 1, stop - 1):gsub('\\/', '/')) end
  end
  return ""
end)

-- Return whether the headers of a part of a form call it `model`.
local function is_model(headers)
  for line in headers:gmatch('[^\r\n]+') do
    if line:sub(1, 20):lower() == "content-disposition:" then
      return (line:match('[; ]name="([^"]*)"') or line:match('[; ]name=([^%s;"]*)')) == "model"
    end
  end
  return false
end

-- The field `model` of a form, among its first parts. No search goes through all of a body twice: a slow one would make
-- HAProxy's watchdog end the worker.
core.register_converters("form_model", function(body)
  local boundary = body:sub(1, LINE):match('^(%-%-[^\r\n]+)\r\n')
  local position = 1
  for _ = 1, boundary and PARTS or 0 do
    local _, begin = body:find(boundary, position, true)
    if not begin then return "" end
    local window = body:sub(begin + 1, begin + LINE)
    local head, rest = window:find('\r\n\r\n', 1, true)
    if head and is_model(window:sub(1, head)) then
      return body:sub(begin + rest + 1, begin + rest + LINE):match('^([^\r\n]*)\r\n') or ""
    end
    position = begin + 1
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
  for key, value in keys(body) do
    local sign = body:sub(value, value)
    local last = sign == '"' and string_end(body, value) or (sign == '[' or sign == '{') and closing(body, value)
    found[key] = body:sub(value, math.min(last or #body, value + TEXT))
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
