-- Posts one distinct, valid order per request and prints the results as one JSON line.
-- Arguments after `--`: a label unique to the run, the body, then one bearer token per account.
-- With the variable BENCH_STATUSES set, it counts the answers by status.

local KEY_PLACE = "@key@"

local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
  thread:set("thread_number", #threads)
end

function init(args)
  key_prefix = args[1] .. "-" .. thread_number .. "-"
  sent = 0
  statuses = {}
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

if os.getenv("BENCH_STATUSES") then
  function response(status)
    statuses[status] = (statuses[status] or 0) + 1
  end
end

function done(summary, latency)
  local errors = summary.errors
  local counts = {}
  for _, thread in ipairs(threads) do
    for status, count in pairs(thread:get("statuses")) do
      counts[status] = (counts[status] or 0) + count
    end
  end
  local counted = {}
  for status, count in pairs(counts) do
    counted[#counted + 1] = string.format('"%d":%d', status, count)
  end
  io.write(string.format(
    '\nMEASURED {"answers":%d,"rejections":%d,"socket_errors":%d,"seconds":%.6f,"p50_ms":%.3f,"p99_ms":%.3f,'
      .. '"statuses":{%s}}\n',
    summary.requests, errors.status, errors.connect + errors.read + errors.write + errors.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, table.concat(counted, ",")))
end
