"""What the server does in one step, so that two gateways never undo each other's work."""

from switchyard.adapters.redis.seal import COUNTED_LENGTH, HEAD_LENGTH, RANK_LENGTH, VALUE_BYTES_MAX

_RANK = f"1, {RANK_LENGTH}"
_COUNTED = f"{HEAD_LENGTH - COUNTED_LENGTH + 1}, {HEAD_LENGTH}"

# KEYS: entries. Answers numbers and values of those that are there: of most orders nothing is, and saying that once for
# a whole batch costs a fraction of saying it for each.
# GETRANGE bounds what a planted value can make us read; it begins and ends like GET for all of ours.
FIND = f"""
local found = {{}}
for number, name in ipairs(KEYS) do
  local held = redis.pcall('GETRANGE', name, 0, {VALUE_BYTES_MAX})
  if held ~= '' then
    found[#found + 1] = number
    found[#found + 1] = type(held) == 'string' and held or 'of another type'
  end
end
return found
"""

# KEYS: the entry, the counts. ARGV: the closed entry, milliseconds to live.
# `pcall` where somebody may have put another type there: an entry is then written over it, and counts are not kept.
PUT = f"""
local held = redis.pcall('GETRANGE', KEYS[1], 0, {HEAD_LENGTH - 1})
if type(held) == 'string' and held ~= '' then
  if string.sub(held, {_RANK}) > string.sub(ARGV[1], {_RANK}) then return 0 end
  redis.pcall('HINCRBY', KEYS[2], string.sub(held, {_COUNTED}), -1)
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.pcall('HINCRBY', KEYS[2], string.sub(ARGV[1], {_COUNTED}), 1)
return 1
"""

# KEYS: the entry, the counts.
FORGET = f"""
local held = redis.pcall('GETRANGE', KEYS[1], 0, {HEAD_LENGTH - 1})
if type(held) == 'string' and held ~= '' then
  redis.pcall('HINCRBY', KEYS[2], string.sub(held, {_COUNTED}), -1)
end
return redis.call('DEL', KEYS[1])
"""

# KEYS: the client's newest requests, the newest first. ARGV: limit, window in milliseconds.
# Answers how many milliseconds to wait, 0 to go ahead. A request from the future means that the clock went back.
TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest and tonumber(newest) > now then redis.call('DEL', KEYS[1]) end
local first = redis.call('LINDEX', KEYS[1], limit - 1)
if first and tonumber(first) + window > now then return tonumber(first) + window - now end
redis.call('LPUSH', KEYS[1], string.format('%.0f', now))
redis.call('LTRIM', KEYS[1], 0, limit - 1)
redis.call('PEXPIRE', KEYS[1], window)
return 0
"""
