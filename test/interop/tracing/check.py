"""Checks the spans that the collector got: one trace over all servers, with the right parents.

    python check.py FILE

Waits for the spans for at most 30 seconds. Every check is a line, and the last line is
`N passed, N failed`.
"""

import json
import sys
import time

# The chain of a call from the visitor to the warehouse: the program of each span, and its kind.
CHAIN = [("shop", "SPAN_KIND_SERVER"), ("shop", "SPAN_KIND_CLIENT"),
         ("depot", "SPAN_KIND_SERVER"), ("depot", "SPAN_KIND_CLIENT"),
         ("warehouse", "SPAN_KIND_SERVER")]
CALL = "tools/call count"


def read():
    with open(sys.argv[1], encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def chain(spans, service):
    """The spans from the visitor's call on, each with its child. The SDK writes more in a name."""
    found = [span for span in spans if span.get("service") == service
             and span["name"].endswith(CALL) and span["kind"] == "SPAN_KIND_CLIENT"]
    while found and (children := [span for span in spans if span.get("name") == CALL
                                  and span["parent"] == found[-1]["span"]]):
        found.append(children[0])
    return found


deadline = time.monotonic() + 30
spans = []
while time.monotonic() < deadline:
    spans = read()
    if all(len(chain(spans, service)) == 6 for service in ("visitor", "python")):
        break
    time.sleep(0.1)

passed = failed = 0


def check(what, holds):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    print(f"{'ok' if holds else 'not ok'} - tracing: {what}")


check("everything that came was OTLP", not [span for span in spans if "error" in span])
check("no span came twice", len({span.get("span") for span in spans}) == len(spans))
ours = [span for span in spans if span.get("scope") == "erlmcp"]
for service in ("visitor", "python"):
    found = chain(spans, service)
    who = f"from {service}"
    check(f"{who}, the call has a span at every server, each a child of the one before",
          [(span["service"], span["kind"]) for span in found[1:]] == CHAIN)
    check(f"{who}, they are one trace", len({span["trace"] for span in found}) == 1)
    check(f"{who}, each lies within its parent",
          all(above["began"] <= below["began"] and below["ended"] <= above["ended"]
              for above, below in zip(found, found[1:])))
    served = [span for span in found if span in ours and span["kind"] == "SPAN_KIND_SERVER"]
    check(f"{who}, servers know that the parent is remote",
          served and all(span["flags"] & 0x301 == 0x301 for span in served))
    check(f"{who}, servers name the tool and the transport",
          served and all(span["attributes"].get("gen_ai.tool.name") == "count"
                         and span["attributes"].get("mcp.method.name") == "tools/call"
                         and span["attributes"].get("network.transport") == "tcp"
                         for span in served))
check("no span of ours has the argument", "secret-7" not in json.dumps(ours))
check("the negotiation has spans, too",
      any(span["name"] == "server/discover" for span in ours if span["service"] == "visitor"))
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
