"""A collector of spans that decodes what it gets with PyPI opentelemetry-proto.

    python collector.py FILE

Takes OTLP/HTTP on a free port, as JSON and as Protobuf, whose URL is the first line of stdout. Adds
a line of JSON to FILE for each span: the program's name and the span's members. A request that is
not OTLP is refused, and FILE gets a line with its error.
"""

import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest, ExportTraceServiceResponse)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

IDS = ("traceId", "spanId", "parentSpanId")


def with_bytes(value):
    """OTLP has ids as hexadecimal digits, and Protobuf's JSON has bytes as base64."""
    if isinstance(value, list):
        return [with_bytes(item) for item in value]
    if isinstance(value, dict):
        return {key: base64.b64encode(bytes.fromhex(item)).decode() if key in IDS
                else with_bytes(item) for key, item in value.items()}
    return value


def decoded(kind, body):
    if kind == "application/x-protobuf":
        return ExportTraceServiceRequest.FromString(body)
    # An unknown member is an error here.
    return json_format.ParseDict(with_bytes(json.loads(body)), ExportTraceServiceRequest())


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def spans(request):
    for of_resource in request.resource_spans:
        resource = attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield {"service": resource.get("service.name"), "scope": of_scope.scope.name,
                       "name": span.name, "kind": Span.SpanKind.Name(span.kind),
                       "trace": span.trace_id.hex(), "span": span.span_id.hex(),
                       "parent": span.parent_span_id.hex(), "flags": span.flags,
                       "links": [{"trace": link.trace_id.hex(), "span": link.span_id.hex()}
                                 for link in span.links],
                       "began": span.start_time_unix_nano, "ended": span.end_time_unix_nano,
                       "status": span.status.code, "message": span.status.message,
                       "attributes": attributes(span.attributes)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        kind = self.headers["content-type"]
        try:
            lines = [json.dumps(span) for span in spans(decoded(kind, body))]
            status = 200
        except Exception as error:
            lines = [json.dumps({"error": f"{kind}: {error}"})]
            status = 400
        with open(sys.argv[1], "a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        answer = (ExportTraceServiceResponse().SerializeToString()
                  if kind == "application/x-protobuf" else b"{}")
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}/v1/traces", flush=True)
server.serve_forever()
