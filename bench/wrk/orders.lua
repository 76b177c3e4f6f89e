-- Posts one distinct, valid order per request and prints the results as one JSON line.
-- Arguments after `--`: a label unique to the run, the body, then one bearer token per account.

local KEY_PLACE = "@key@"

local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("thread_number", threads)
end

function init(args)
  key_prefix = args[1] .. "-" .. thread_number .. "-"
  sent = 0
  -- Everything except the key is built once: the load generator shares the cores with the server it measures.
  heads, tails = {}, {}
  for i = 3, #args do
    local text = wrk.format("POST", "/orders", {
      ["Authorization"] = "Bearer " .. args[i],
      ["Content-Type"] = "application/json",
      ["Idempotency-Key"] = KEY_PLACE,
    }, args[2])
    local first, last = text:find(KEY_PLACE, 1, true)
    heads[#heads + 1] = text:sub(1, first - 1)
    tails[#tails + 1] = text:sub(last + 1)
  end
end

function request()
  sent = sent + 1
  local account = sent % #heads + 1
  return heads[account] .. key_prefix .. sent .. tails[account]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\nMEASURED {"answers":%d,"rejections":%d,"socket_errors":%d,"seconds":%.6f,"p50_ms":%.3f,"p99_ms":%.3f}\n',
    summary.requests, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
