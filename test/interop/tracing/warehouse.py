"""A server of the official Python SDK, version 2, which reports its own spans.

    python warehouse.py COLLECTOR

Serves the tool `count` over HTTP on a free port, whose URL is the first line of stdout.
"""

import socket
import sys

import uvicorn
from mcp.server import MCPServer
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource.create({"service.name": "warehouse"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[1])))
trace.set_tracer_provider(provider)

mcp = MCPServer("warehouse")


@mcp.tool()
def count(item: str) -> str:
    """Counts an item."""
    return "7"


listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
uvicorn.Server(uvicorn.Config(mcp.streamable_http_app(), log_level="warning")).run(
    sockets=[listener])
