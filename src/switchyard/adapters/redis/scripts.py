"""Lua scripts that run atomically on the Redis server, so that concurrent gateways do not overwrite newer entries."""

from switchyard.adapters.redis.seal import (
    ACCESS_LENGTH,
    BUCKET_LENGTH,
    HEAD_LENGTH,
    LAST_LENGTH,
    RANK_LENGTH,
    VALUE_BYTES_MAX,
)

_RANK = f"1, {RANK_LENGTH}"
_BUCKET = f"{HEAD_LENGTH - BUCKET_LENGTH + 1}, {HEAD_LENGTH}"
_COUNT = f"{HEAD_LENGTH + LAST_LENGTH + 1}, {HEAD_LENGTH + ACCESS_LENGTH}"

# KEYS: entries. ARGV: the time in milliseconds, with zeros in front. Returns the index and value of each entry that
# exists, and counts the lookup in it. Most lookups miss, so one short reply for the whole batch costs a fraction of one
# nil per key.
# GETRANGE instead of GET bounds how much a planted value can make the client read; every sealed entry is within it.
# `pcall` also where the lookup is counted: a server without memory, or a replica, still answers.
FIND = f"""
local found = {{}}
for number, name in ipairs(KEYS) do
  local held = redis.pcall('GETRANGE', name, 0, {VALUE_BYTES_MAX})
  if held ~= '' then
    local count = type(held) == 'string' and tonumber(string.sub(held, {_COUNT}))
    if count and count < 999999999 then
      local access = ARGV[1] .. string.format('%0{ACCESS_LENGTH - LAST_LENGTH}d', count + 1)
      redis.pcall('SETRANGE', name, {HEAD_LENGTH}, access)
      held = string.sub(held, 1, {HEAD_LENGTH}) .. access .. string.sub(held, {HEAD_LENGTH + ACCESS_LENGTH + 1})
    end
    found[#found + 1] = number
    found[#found + 1] = type(held) == 'string' and held or 'of another type'
  end
end
return found
"""

# KEYS: the counts, then entries. ARGV: for each entry the sealed value and the milliseconds to live. Returns how many
# entries the server did not take, for example because its memory is full.
# One script for a batch: a command and a reply for each entry cost the gateway several times as much.
# `pcall` because another client may have stored another type under these names: the entry is then overwritten, and
# the counts are not updated.
PUT = f"""
local refused = 0
for number = 2, #KEYS do
  local name, value, lives = KEYS[number], ARGV[2 * number - 3], ARGV[2 * number - 2]
  local held = redis.pcall('GETRANGE', name, 0, {HEAD_LENGTH - 1})
  local is_known = type(held) == 'string' and held ~= ''
  if not is_known or string.sub(held, {_RANK}) <= string.sub(value, {_RANK}) then
    if redis.pcall('SET', name, value, 'PX', lives).err then
      refused = refused + 1
    else
      if is_known then redis.pcall('HINCRBY', KEYS[1], string.sub(held, {_BUCKET}), -1) end
      redis.pcall('HINCRBY', KEYS[1], string.sub(value, {_BUCKET}), 1)
    end
  end
end
return refused
"""

# KEYS: the entry, the counts.
FORGET = f"""
local held = redis.pcall('GETRANGE', KEYS[1], 0, {HEAD_LENGTH - 1})
if type(held) == 'string' and held ~= '' then
  redis.pcall('HINCRBY', KEYS[2], string.sub(held, {_BUCKET}), -1)
end
return redis.call('DEL', KEYS[1])
"""

# KEYS: the times of the client's latest requests, newest first. ARGV: limit, window in milliseconds.
# Returns the milliseconds to wait, 0 if the request is allowed; the requests in the window; and the milliseconds until
# the oldest of them leaves it. A time in the future means that the server's clock was set back; the list is then
# cleared.
TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest and tonumber(newest) > now then redis.call('DEL', KEYS[1]) end
local first = redis.call('LINDEX', KEYS[1], limit - 1)
if first and tonumber(first) + window > now then
  local wait = tonumber(first) + window - now
  return {wait, limit, wait}
end
redis.call('LPUSH', KEYS[1], string.format('%.0f', now))
redis.call('LTRIM', KEYS[1], 0, limit - 1)
redis.call('PEXPIRE', KEYS[1], window)
local used, high = 1, redis.call('LLEN', KEYS[1])
while used < high do
  local middle = math.floor((used + high) / 2)
  if tonumber(redis.call('LINDEX', KEYS[1], middle)) + window > now then used = middle + 1 else high = middle end
end
return {0, used, tonumber(redis.call('LINDEX', KEYS[1], used - 1)) + window - now}
"""

# KEYS: the time, in microseconds, at which the account's bucket is full again. ARGV: microseconds for one token, burst,
# step. Returns the microseconds to wait, 0 if there is a token. A time further in the future than an empty bucket means
# that the server's clock was set back; the bucket is then full.
BUCKET = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval, burst, step = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local full_at = tonumber(redis.call('GET', KEYS[1]) or now) or now
if full_at < now or full_at > now + (burst + 1) * interval then full_at = now end
local wait = full_at - now - (burst - 1) * interval
if step == 'put_back' then
  full_at = full_at - interval
elseif wait >= 1 then
  return math.ceil(wait)
elseif step == 'wait' then
  return 0
else
  full_at = full_at + interval
end
if full_at > now then
  redis.call('SET', KEYS[1], string.format('%.3f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1)
else
  redis.call('DEL', KEYS[1])
end
return 0
"""
