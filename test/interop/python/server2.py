"""The catalogue, served by version 2 of the official Python SDK.

    python server2.py           on stdio
    python server2.py --http    over HTTP on a free port, whose URL is the first line of stdout

CATALOGUE names the file of the catalogue.
"""

import asyncio
import base64
import json
import os
import re
import socket
import sys
import warnings

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged)
from mcp.shared.exceptions import MCPError

# Logging, sampling and roots are deprecated, and still served here.
warnings.simplefilter("ignore")

with open(os.environ["CATALOGUE"], encoding="utf-8") as file:
    CATALOGUE = json.load(file)
MODERN = "2026-07-28"
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
COUNTER = "note://counter"


class State:
    counter = 0
    added = False
    bus = InMemorySubscriptionBus()
    sessions: dict = {}  # what is known of a session of an older revision, by its connection


class Session:
    def __init__(self):
        self.level = "debug"
        self.uris = set()


def session(ctx):
    known = State.sessions.setdefault(id(ctx.session._connection), (ctx.session, Session()))
    return known[1]


def say(text, **more):
    return types.CallToolResult(content=[types.TextContent(text=text)], **more)


def page(name, model, definitions, params):
    first = int(params.cursor) if params and params.cursor else 0
    last = first + CATALOGUE["pageSize"]
    more = str(last) if last < len(definitions) else None
    return model.model_validate({name: definitions[first:last], "nextCursor": more})


def listing(name, model, key):
    async def handler(_ctx, params):
        definitions = CATALOGUE[key]
        if key == "tools" and State.added:
            definitions = [*definitions, CATALOGUE["added"]]
        return page(name, model, definitions, params)
    return handler


# In 2026-07-28 an input request is a result, and the next try brings its answer. In a session the
# client gets a request while the call waits.
async def ask(ctx, params, question, answer):
    if ctx.protocol_version == MODERN:
        if not params.input_responses:
            return types.InputRequiredResult(input_requests={"it": question})
        return say(answer(params.input_responses["it"]))
    session, related = ctx.session, ctx.request_id
    if isinstance(question, types.ListRootsRequest):
        return say(answer(await session.list_roots()))
    asked = question.params
    if isinstance(question, types.CreateMessageRequest):
        return say(answer(await session.create_message(
            asked.messages, max_tokens=asked.max_tokens, related_request_id=related)))
    if asked.mode == "url":
        return say(answer(await session.elicit_url(
            asked.message, asked.url, "page", related_request_id=related)))
    return say(answer(await session.elicit_form(
        asked.message, asked.requested_schema, related_request_id=related)))


async def call_tool(ctx, params):
    arguments = params.arguments or {}
    match params.name:
        case "add":
            result = {"sum": arguments["a"] + arguments["b"]}
            return say(json.dumps(result), structured_content=result)
        case "added":
            return say("here")
        case "ask":
            form = types.ElicitRequestFormParams(message="Who is there?", requested_schema={
                "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
            return await ask(ctx, params, types.ElicitRequest(params=form), lambda r:
                             f"Hello, {r.content['name']}" if r.action == "accept" else r.action)
        case "ask_url":
            url = types.ElicitRequestURLParams(
                message="Look there", url="https://example.com/page")
            return await ask(ctx, params, types.ElicitRequest(params=url), lambda r: r.action)
        case "change":
            if ctx.protocol_version != MODERN:
                session(ctx)
            State.added = not State.added
            await State.bus.publish(ToolsListChanged())
            for live, _ in State.sessions.values():
                await live.send_tool_list_changed()
            return say("added" if State.added else "removed")
        case "echo":
            return say(arguments["text"])
        case "fail":
            return say("It failed.", is_error=True)
        case "logs":
            modern = ctx.protocol_version == MODERN
            least = "debug" if modern else session(ctx).level
            for level in ["debug", "info", "error"]:
                if LEVELS.index(level) >= LEVELS.index(least):
                    await ctx.session.send_log_message(
                        level, f"at {level}", "catalogue", related_request_id=ctx.request_id)
            return say("logged")
        case "region":
            return say(arguments["region"])
        case "roots":
            return await ask(ctx, params, types.ListRootsRequest(), lambda r:
                             " ".join(str(root.uri) for root in r.roots))
        case "sample":
            message = types.SamplingMessage(
                role="user", content=types.TextContent(text="Say something"))
            question = types.CreateMessageRequest(params=types.CreateMessageRequestParams(
                messages=[message], max_tokens=100))
            return await ask(ctx, params, question, lambda r: r.content.text)
        case "slow":
            for step in range(1, arguments["steps"] + 1):
                await asyncio.sleep(0.05)
                await ctx.session.report_progress(step, arguments["steps"])
            return say(f"{arguments['steps']} steps")
        case "touch":
            State.counter += 1
            await State.bus.publish(ResourceUpdated(uri=COUNTER))
            for live, known in State.sessions.values():
                if COUNTER in known.uris:
                    await live.send_resource_updated(COUNTER)
            return say(str(State.counter))
    raise MCPError(types.INVALID_PARAMS, f"no tool {params.name}")


async def read_resource(_ctx, params):
    uri = params.uri

    def text(text):
        content = types.TextResourceContents(uri=uri, mime_type="text/plain", text=text)
        return types.ReadResourceResult(contents=[content])

    if item := re.fullmatch(r"note://item/([^/]+)", uri):
        return text(f"item {item[1]}")
    match uri:
        case "note://text":
            return text(CATALOGUE["text"])
        case "note://counter":
            return text(str(State.counter))
        case "note://blob":
            return types.ReadResourceResult(contents=[types.BlobResourceContents(
                uri=uri, mime_type="application/octet-stream",
                blob=base64.b64encode(bytes(range(256))).decode())])
    raise MCPError(types.INVALID_PARAMS, f"no resource {uri}", {"uri": uri})


async def subscribe(ctx, params):
    session(ctx).uris.add(params.uri)
    return types.EmptyResult()


async def unsubscribe(ctx, params):
    session(ctx).uris.discard(params.uri)
    return types.EmptyResult()


async def set_level(ctx, params):
    session(ctx).level = params.level
    return types.EmptyResult()


async def get_prompt(_ctx, params):
    if params.name != "greet":
        raise MCPError(types.INVALID_PARAMS, f"no prompt {params.name}")
    content = types.TextContent(text=f"Greet {params.arguments['name']}.")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


async def complete(_ctx, params):
    values = [name for name in CATALOGUE["names"] if name.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(
        values=values, total=len(values), has_more=False))


class Catalogue(Server):
    # The HTTP transport has no other way to announce that lists change.
    def create_initialization_options(self, *_args, **_kwargs):
        return super().create_initialization_options(NotificationOptions(tools_changed=True))


SERVER = Catalogue(
    CATALOGUE["server"]["name"], version=CATALOGUE["server"]["version"],
    instructions=CATALOGUE["instructions"],
    get_tool_input_schema=lambda name: next(
        (tool["inputSchema"] for tool in CATALOGUE["tools"] if tool["name"] == name), None),
    on_list_tools=listing("tools", types.ListToolsResult, "tools"),
    on_call_tool=call_tool,
    on_list_resources=listing("resources", types.ListResourcesResult, "resources"),
    on_list_resource_templates=listing(
        "resourceTemplates", types.ListResourceTemplatesResult, "resourceTemplates"),
    on_read_resource=read_resource,
    on_subscribe_resource=subscribe, on_unsubscribe_resource=unsubscribe,
    on_subscriptions_listen=ListenHandler(State.bus),
    on_list_prompts=listing("prompts", types.ListPromptsResult, "prompts"),
    on_get_prompt=get_prompt, on_completion=complete, on_set_logging_level=set_level)


async def stdio():
    async with stdio_server() as (reader, writer):
        await SERVER.run(reader, writer, SERVER.create_initialization_options())


def http():
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(SERVER.streamable_http_app(), log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


if "--http" in sys.argv:
    http()
else:
    asyncio.run(stdio())
