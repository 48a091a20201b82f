-- Sends the request that the file REQUEST describes, with wrk. Counting begins at its time `from`
-- (seconds since 1970); before that the connections warm up. With `numbered` each request of a
-- thread has its own id. Sessions are used in turn. At the end it prints one line with: all
-- answers; the requests that were sent before `from`; the seconds and wrk's own CPU time since
-- then; percentiles of all latencies in microseconds; answers that are not 2xx; the bytes of all
-- answers; and how many connections broke and requests got no answer.
local ffi = require("ffi")
ffi.cdef [[
    typedef struct { long s; long us; } peers_time;
    int gettimeofday(peers_time *time, void *zone);
]]

local clock = ffi.new("peers_time")
local function now()
    ffi.C.gettimeofday(clock, nil)
    return tonumber(clock.s) + tonumber(clock.us) / 1e6
end

local threads = {}
function setup(thread)
    threads[#threads + 1] = thread
    thread:set("number", #threads)
end

function init()
    local wanted = dofile(os.getenv("REQUEST"))
    from, sent, began, cpu, before = wanted.from, 0, 0, 0, 0
    local function format(session)
        local headers = {}
        for name, value in pairs(wanted.headers) do headers[name] = value end
        headers["Mcp-Session-Id"] = session
        return wrk.format("POST", wanted.path, headers, wanted.body)
    end
    -- The bytes before the id, and after it.
    local function parts(session)
        local before, after = format(session):match('^(.*"id":)1000000000(.*)$')
        return { before, after }
    end
    -- Each thread has its own sessions.
    requests = {}
    for index, session in ipairs(wanted.sessions) do
        if index % wanted.threads == number - 1 then
            requests[#requests + 1] = parts(session)
        end
    end
    if not wanted.numbered then
        alone = format(nil)
    elseif #requests == 0 then
        requests = { parts(nil) }
    end
end

function request()
    sent = sent + 1
    if began == 0 and now() >= from then
        began, cpu, before = now(), os.clock(), sent
    end
    if alone then return alone end
    local parts = requests[sent % #requests + 1]
    return parts[1] .. (1000000000 + sent) .. parts[2]
end

function done(summary, latency)
    local ended, spent = now(), os.clock()
    local before, began, cpu = 0, 0, 0
    for _, thread in ipairs(threads) do
        before = before + thread:get("before")
        began = math.max(began, thread:get("began"))
        cpu = math.max(cpu, thread:get("cpu"))
    end
    local errors = summary.errors
    print(string.format("measured %d %d %.6f %.6f %d %d %d %.0f %d %d",
        summary.requests, before, began == 0 and 0 or ended - began, spent - cpu,
        latency:percentile(50), latency:percentile(99), errors.status, summary.bytes,
        errors.connect + errors.read + errors.write, errors.timeout))
end
