"""Calls the tool `count` of a server with the official Python SDK, version 2, which reports spans.

    python visitor.py COLLECTOR URL
"""

import sys

import anyio
from mcp import Client
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource.create({"service.name": "python"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[1])))
trace.set_tracer_provider(provider)


async def main():
    async with Client(sys.argv[2]) as client:
        result = await client.call_tool("count", {"item": "secret-7"})
        assert result.content[0].text == "7"


anyio.run(main)
