"""Talks to an MCP server as a user of the official Python SDK would, and prints the checks.

    python client.py URL                over Streamable HTTP
    python client.py sse+URL            over HTTP+SSE of 2024-11-05
    python client.py 'COMMAND ...'      over stdio; the command is run by sh
    --mode auto|legacy|2026-07-28       this mode only (SDK 2; SDK 1 knows the legacy one only)

One line per check, `ok - NAME` or `not ok - NAME: why`; last line `N passed, N failed`; exit 1
when one failed. The server must be the everything server, with lists of several pages. The file
runs with either major version of the SDK: two of the classes below have the differences. Results
are compared in the form they have on the wire.
"""

import importlib.metadata
import json
import os
import re
import sys
import time
import warnings
from contextlib import AsyncExitStack
from datetime import timedelta

import anyio

VERSION = importlib.metadata.version("mcp")
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5Erk"
    "Jggg=="
)
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
TOOLS = [
    "test_simple_text", "test_image_content", "test_audio_content", "test_embedded_resource",
    "test_multiple_content_types", "test_error_handling", "test_tool_with_progress", "echo",
    "slow_tool",
]
PROMPTS = [
    "test_simple_prompt", "test_prompt_with_arguments", "test_prompt_with_embedded_resource",
    "test_prompt_with_image",
]
VIEWS = "io.modelcontextprotocol/ui"
VIEW_TYPE = "text/html;profile=mcp-app"
LIMIT_S = 15
# A busy machine may delay one, but hardly each.
TRIES = 3


def wire(model):
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def stdio_parameters(target):
    from mcp import StdioServerParameters

    # The SDK passes on only a few variables; the command may need its cache folder.
    return StdioServerParameters(
        command="sh", args=["-c", f"exec {target}"], env=dict(os.environ)
    )


class Ears:
    """Collects notifications by kind, and answers the server's requests."""

    KINDS = {
        "notifications/tools/list_changed": "tools",
        "notifications/prompts/list_changed": "prompts",
        "notifications/resources/updated": "resource",
        "notifications/tasks/status": "task",
    }

    def __init__(self):
        self.heard = {kind: [] for kind in (*self.KINDS.values(), "message")}

    def callbacks(self):
        return {
            "message_handler": self.hear,
            "logging_callback": self.log,
            "sampling_callback": self.sample,
            "elicitation_callback": self.elicit,
            "list_roots_callback": self.roots,
        }

    async def hear(self, message):
        message = getattr(message, "root", message)
        kind = self.KINDS.get(getattr(message, "method", None))
        if kind is not None:
            self.heard[kind].append(wire(message).get("params"))

    async def log(self, params):
        self.heard["message"].append(wire(params))

    async def next(self, kind):
        while not self.heard[kind]:
            await anyio.sleep(0.005)
        return self.heard[kind].pop(0)

    async def sample(self, _context, params):
        from mcp.types import CreateMessageResult

        request = wire(params)
        text = f"{request['messages'][0]['content']['text']}, in {request['maxTokens']} tokens"
        content = {"type": "text", "text": text}
        return CreateMessageResult.model_validate(
            {"role": "assistant", "model": "none", "content": content}
        )

    async def roots(self, _context):
        from mcp.types import ListRootsResult

        return ListRootsResult.model_validate({"roots": [{"uri": "file:///work", "name": "work"}]})

    async def elicit(self, _context, params):
        from mcp.types import ElicitResult

        message = wire(params)["message"]
        if message.startswith("Step 2"):
            answer = {"action": "accept", "content": {"color": "green"}}
        elif "name?" in message:
            answer = {"action": "accept", "content": {"name": "Ada"}}
        else:
            answer = {"action": "decline"}
        return ElicitResult.model_validate(answer)


class Two:
    """SDK 2: one Client for both eras."""

    # The SDK closes stdin and waits 2 s for the server before it kills.
    CLOSES_WITHIN = 1.9
    SHOWS_VIEWS = True
    MODES = {"auto": "2026-07-28", "legacy": "2025-11-25", "2026-07-28": "2026-07-28"}

    def __init__(self, target, mode):
        from mcp import Client
        from mcp.client import advertise

        if is_sse(target):
            from mcp.client.sse import sse_client

            server = sse_client(target.removeprefix("sse+"))
        else:
            server = target if is_url(target) else stdio_parameters(target)
        self.ears = Ears()
        # A cache would answer instead of the server.
        self.client = Client(
            server, mode=mode, read_timeout_seconds=LIMIT_S, cache=None,
            extensions=[advertise(VIEWS, {"mimeTypes": [VIEW_TYPE]})], **self.ears.callbacks(),
        )
        self.session = self.client

    async def __aenter__(self):
        await self.client.__aenter__()
        self.version = self.client.protocol_version
        info = self.client.server_info
        self.server = info and wire(info)
        self.offered = wire(self.client.server_capabilities)
        return self

    async def __aexit__(self, *reason):
        return await self.client.__aexit__(*reason)

    async def call(self, name, arguments=None, progress=None, meta=None):
        return wire(
            await self.client.call_tool(name, arguments, progress_callback=progress, meta=meta)
        )

    async def read(self, uri):
        return wire(await self.client.read_resource(uri))["contents"]

    async def page(self, kind, cursor):
        return wire(await getattr(self.client, f"list_{kind}")(cursor=cursor))

    @staticmethod
    def uri(text):
        return text

    async def prompt(self, name, arguments=None):
        return wire(await self.client.get_prompt(name, arguments))["messages"]

    async def ping(self):
        with warnings.catch_warnings():
            # The SDK warns at every ping that newer revisions have none.
            warnings.simplefilter("ignore")
            return await self.client.send_ping()


class One:
    """SDK 1: a transport and a ClientSession on it; revisions up to 2025-11-25."""

    # The server does not see the cancellation, and may still work on the call when its stdin
    # closes. It may need the signal that follows.
    CLOSES_WITHIN = 5
    # SDK 1 has no name for extensions.
    SHOWS_VIEWS = False
    MODES = {"legacy": "2025-11-25"}

    def __init__(self, target, _mode):
        self.target = target

    async def __aenter__(self):
        from mcp import ClientSession
        from mcp.client.sse import sse_client
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client

        if is_url(self.target):
            transport = streamable_http_client(self.target)
        elif is_sse(self.target):
            transport = sse_client(self.target.removeprefix("sse+"))
        else:
            transport = stdio_client(stdio_parameters(self.target))
        self.ears = Ears()
        async with AsyncExitStack() as stack:
            reader, writer = (await stack.enter_async_context(transport))[:2]
            limit = timedelta(seconds=LIMIT_S)
            self.session = await stack.enter_async_context(
                ClientSession(
                    reader, writer, read_timeout_seconds=limit, **self.ears.callbacks()
                )
            )
            hello = await self.session.initialize()
            self.version = str(hello.protocolVersion)
            self.server = wire(hello.serverInfo)
            self.offered = wire(hello.capabilities)
            self.stack = stack.pop_all()
        return self

    async def __aexit__(self, *reason):
        return await self.stack.__aexit__(*reason)

    async def call(self, name, arguments=None, progress=None, meta=None):
        return wire(
            await self.session.call_tool(name, arguments, progress_callback=progress, meta=meta)
        )

    async def read(self, uri):
        return wire(await self.session.read_resource(self.uri(uri)))["contents"]

    async def page(self, kind, cursor):
        from mcp.types import PaginatedRequestParams

        params = PaginatedRequestParams(cursor=cursor)
        return wire(await getattr(self.session, f"list_{kind}")(params=params))

    @staticmethod
    def uri(text):
        from pydantic import AnyUrl

        return AnyUrl(text)

    async def prompt(self, name, arguments=None):
        return wire(await self.session.get_prompt(name, arguments))["messages"]

    async def ping(self):
        return await self.session.send_ping()


def is_url(target):
    return re.match("https?:", target) is not None


def is_sse(target):
    return target.startswith("sse+")


def equal(actual, expected):
    if actual != expected:
        raise AssertionError(f"got {actual!r:.400}, expected {expected!r:.400}")


def holds(condition, why):
    if not condition:
        raise AssertionError(why)


async def listed(peer, kind, field):
    """A list, gathered page by page, and the number of its pages."""
    items, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        page = await peer.page(kind, cursor)
        items += page[field]
        cursor, pages = page.get("nextCursor"), pages + 1
    return items, pages


async def refused(code, awaitable):
    try:
        answer = await awaitable
    except Exception as error:
        # McpError in SDK 1, MCPError in SDK 2.
        if not hasattr(error, "error"):
            raise
        equal(error.error.code, code)
        return error.error.data
    else:
        raise AssertionError(f"expected error {code}, got the result {answer!r:.300}")


class Report:
    def __init__(self):
        self.passed = self.failed = 0
        self.label = ""

    def line(self, name, error=None):
        if error is None:
            self.passed += 1
            print(f"ok - {self.label}: {name}", flush=True)
        else:
            self.failed += 1
            while hasattr(error, "exceptions"):
                error = error.exceptions[0]
            why = " ".join(f"{type(error).__name__}: {error}".split())[:600]
            print(f"not ok - {self.label}: {name}: {why}", flush=True)

    async def check(self, name, body, *args):
        try:
            with anyio.fail_after(LIMIT_S):
                await body(*args)
        except Exception as error:
            self.line(name, error)
        else:
            self.line(name)


async def tools(check, peer):
    async def fixtures():
        tools, pages = await listed(peer, "tools", "tools")
        holds(pages > 1, "the first page is the last one")
        names = [tool["name"] for tool in tools]
        equal([name for name in TOOLS if name not in names], [])
        equal([tool["name"] for tool in tools if tool["inputSchema"].get("type") != "object"], [])

    async def simple():
        result = await peer.call("test_simple_text")
        text = "This is a simple text response for testing."
        equal(result["content"], [{"type": "text", "text": text}])

    async def image():
        result = await peer.call("test_image_content", {})
        equal(result["content"], [{"type": "image", "data": PNG, "mimeType": "image/png"}])

    async def audio():
        result = await peer.call("test_audio_content", {})
        equal(result["content"], [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}])

    async def embedded():
        result = await peer.call("test_embedded_resource", {})
        equal([part["resource"] for part in result["content"]], [{
            "uri": "test://embedded-resource",
            "mimeType": "text/plain",
            "text": "This is an embedded resource content.",
        }])

    async def mixed():
        content = (await peer.call("test_multiple_content_types", {}))["content"]
        equal([part["type"] for part in content], ["text", "image", "resource"])
        equal(content[1]["data"], PNG)
        equal(json.loads(content[2]["resource"]["text"]), {"test": "data", "value": 123})

    async def link():
        equal((await peer.call("resource_link", {}))["content"], [{
            "type": "resource_link",
            "uri": "test://static-text",
            "name": "static-text",
            "mimeType": "text/plain",
        }])

    async def structured():
        # The SDK validates it against the tool's schema.
        result = await peer.call("system_info", {})
        holds(result["structuredContent"]["otp_release"], result)

    async def tool_error():
        result = await peer.call("test_error_handling", {})
        equal(result["isError"], True)
        text = "This tool intentionally returns an error for testing"
        equal(result["content"][0]["text"], text)

    async def progress():
        # The server sends them 50 ms apart. If they all arrive at once, they were held back. A busy
        # machine may do so sometimes, but not each time.
        for _ in range(10):
            seen = []

            async def note(progress, total, _message, seen=seen):
                seen.append((progress, total, time.monotonic()))

            await peer.call("test_tool_with_progress", {}, note)
            ahead = time.monotonic() - seen[0][2]
            equal([(now, total) for now, total, _ in seen], [(0, 100), (50, 100), (100, 100)])
            if ahead >= 0.03:
                return
        holds(False, f"the first came {ahead:.3f} s before the result")

    async def echo(text):
        equal((await peer.call("echo", {"text": text}))["content"][0]["text"], text)

    async def at_once():
        async with anyio.create_task_group() as group:
            for n in range(20):
                group.start_soon(echo, f"text {n}")

    async def misfit():
        result = await peer.call("add", {"a": 1, "b": "two"})
        equal(result.get("isError"), True)
        holds("/b must be a number" in result["content"][0]["text"], result)

    async def cancel():
        start = time.monotonic()
        with anyio.move_on_after(0.3) as scope:
            # SDK 1 fails to close if the answer comes at that moment, so the answer must never
            # come.
            await peer.call("slow_tool", {"ms": 60_000})
        took = time.monotonic() - start
        holds(scope.cancelled_caught, f"the call ended by itself after {took:.3f} s")
        holds(took < 10, f"the call ended after {took:.3f} s")
        await echo("after")
        holds(time.monotonic() - start < 12, "the next call was slow")

    await check("lists the fixture tools, page by page", fixtures)
    await check("calls a tool without arguments", simple)
    await check("gets an image", image)
    await check("gets audio", audio)
    await check("gets an embedded resource", embedded)
    await check("gets several kinds of content in order", mixed)
    await check("gets a link to a resource", link)
    await check("gets structured content", structured)
    await check("gets the error of a tool as a result", tool_error)
    await check("sees progress before the result", progress)
    await check(
        "is refused an unknown tool with -32602", refused, -32602, peer.call("no_such_tool", {})
    )
    text = 'a"\\/\n\t\u0001\u007f é 漢字 \U0001f40e </script> \u2028'
    await check("gets back every character it sent", echo, text)
    await check("gets back 300,000 characters", echo, "x" * 300_000)
    await check("makes 20 calls at once, each with its own answer", at_once)
    await check("cancels a slow call and goes on", cancel)
    await check("learns what is wrong with its arguments", misfit)


async def resources(check, peer, modern):
    async def fixtures():
        uris = [resource["uri"] for resource in (await listed(peer, "resources", "resources"))[0]]
        holds("test://static-text" in uris, uris)
        holds("test://static-binary" in uris, uris)

    async def text():
        equal(await peer.read("test://static-text"), [{
            "uri": "test://static-text",
            "mimeType": "text/plain",
            "text": "This is the content of the static text resource.",
        }])

    async def binary():
        equal(await peer.read("test://static-binary"), [
            {"uri": "test://static-binary", "mimeType": "image/png", "blob": PNG}
        ])

    async def templated():
        [content] = await peer.read("test://template/123/data")
        equal(content["uri"], "test://template/123/data")
        equal(content["mimeType"], "application/json")
        equal(json.loads(content["text"])["id"], "123")

    async def templates():
        found, _ = await listed(peer, "resource_templates", "resourceTemplates")
        templates = [template["uriTemplate"] for template in found]
        holds("test://template/{id}/data" in templates, templates)

    await check("lists the fixture resources", fixtures)
    await check("reads text", text)
    await check("reads bytes", binary)
    await check("reads what a template describes", templated)
    async def unknown():
        uri = "test://no-such-resource"
        # The code for it changed: -32002 was the older revisions' own.
        data = await refused(-32602 if modern else -32002, peer.read(uri))
        equal(data and data.get("uri"), uri)

    await check("is refused an unknown resource with its URI", unknown)
    await check("lists the resource template", templates)


async def prompts(check, peer):
    async def fixtures():
        names = [prompt["name"] for prompt in (await listed(peer, "prompts", "prompts"))[0]]
        equal([name for name in PROMPTS if name not in names], [])

    async def simple():
        text = "This is a simple prompt for testing."
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        equal(await peer.prompt("test_simple_prompt"), messages)

    async def with_arguments():
        arguments = {"arg1": "one", "arg2": "two"}
        [message] = await peer.prompt("test_prompt_with_arguments", arguments)
        equal(message["content"]["text"], "Prompt with arguments: arg1='one', arg2='two'")

    async def completed():
        from mcp.types import PromptReference

        ref = PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
        found = wire(await peer.session.complete(ref, {"name": "arg1", "value": "te"}))
        equal(found["completion"]["values"], ["test", "testing"])

    await check("completes a prompt's argument", completed)
    await check("lists the fixture prompts", fixtures)
    await check("gets a prompt", simple)
    await check("gets a prompt with arguments", with_arguments)
    await check(
        "is refused an unknown prompt with -32602", refused, -32602, peer.prompt("no_such_prompt")
    )
    await check(
        "is refused a prompt without its arguments with -32602",
        refused, -32602, peer.prompt("test_prompt_with_arguments"),
    )


async def notifications(check, peer, modern):
    uri = "test://watched-resource"
    ears = peer.ears

    async def logged():
        meta = None
        if modern:
            meta = {"io.modelcontextprotocol/logLevel": "info"}
        else:
            await peer.session.set_logging_level("info")
        await peer.call("test_tool_with_logging", {}, meta=meta)
        for text in (
            "Tool execution started", "Tool processing data", "Tool execution completed"
        ):
            message = await ears.next("message")
            equal((message["level"], message["data"]), ("info", text))

    async def list_changed(kind):
        await peer.call(f"test_trigger_{kind}_change", {})
        await ears.next(f"{kind}s")

    async def watched():
        await peer.session.subscribe_resource(peer.uri(uri))
        await peer.call("touch_watched", {})
        equal((await ears.next("resource"))["uri"], uri)

    async def unwatched():
        await peer.session.unsubscribe_resource(peer.uri(uri))
        ears.heard["tools"].clear()
        await peer.call("touch_watched", {})
        await peer.call("test_trigger_tool_change", {})
        # Later notifications come later in the same stream.
        await ears.next("tools")
        equal(ears.heard["resource"], [])

    async def listens(tool, event, **filters):
        async with peer.client.listen(**filters) as subscription:
            await peer.call(tool, {})
            async for heard in subscription:
                equal(type(heard).__name__, event)
                break

    # The SDK warns each time about features that newer revisions have removed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        await check("gets log messages while a call runs", logged)
        if modern:
            for kind in ("tool", "prompt"):
                await check(
                    f"hears that the list of {kind}s changed",
                    lambda: listens(
                        f"test_trigger_{kind}_change",
                        f"{kind.title()}sListChanged",
                        **{f"{kind}s_list_changed": True},
                    ),
                )
            await check(
                "hears that a resource it watches changed",
                lambda: listens("touch_watched", "ResourceUpdated", resource_subscriptions=[uri]),
            )
        else:
            for kind in ("tool", "prompt"):
                await check(f"hears that the list of {kind}s changed", list_changed, kind)
            await check("hears that a resource it watches changed", watched)
            await check("hears no more of it once it has unsubscribed", unwatched)


async def questions(check, peer):
    """Input requests of a call: requests in a session, otherwise results."""

    async def says(expected, name, arguments):
        equal((await peer.call(name, arguments))["content"], [{"type": "text", "text": expected}])

    for title, expected, name, arguments in [
        ("answers a call's question to its model",
         "LLM response: Hello?, in 100 tokens", "test_sampling", {"prompt": "Hello?"}),
        ("answers a call's question for its roots",
         "file:///work\n", "test_input_required_result_list_roots", {}),
        ("answers a call's two forms",
         "Ada likes green", "test_input_required_result_multi_round", {}),
        ("declines a form",
         "User response: action=decline, content={}", "test_elicitation", {"message": "Who?"}),
        ("answers three questions of a call at once",
         "Generate a greeting, in 50 tokens Ada of 1 roots",
         "test_input_required_result_multiple_inputs", {}),
    ]:
        await check(title, says, expected, name, arguments)


async def apps(check, peer):
    async def viewed():
        found, _ = await listed(peer, "tools", "tools")
        [clock] = [tool for tool in found if tool["name"] == "clock"]
        view = clock["_meta"]["ui"]["resourceUri"]
        [page] = await peer.read(view)
        equal((page["uri"], page["mimeType"]), (view, VIEW_TYPE))
        shown = (await peer.call("clock", {}))["structuredContent"]["shown"]
        equal(shown, peer.SHOWS_VIEWS)

    await check("gets the view of a tool", viewed)


async def tasks(check, peer):
    """Tasks of 2025-11-25; version 2 of the SDK no longer has them."""
    from mcp.types import CallToolResult

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine = peer.session.experimental

    async def begun(name, arguments=None):
        made = await mine.call_tool_as_task(name, arguments or {}, ttl=60_000)
        return made.task.taskId

    async def status(task, expected):
        async for state in mine.poll_task(task):
            if state.status == expected:
                return state
        equal(state.status, expected)
        return state

    async def result(task):
        return wire(await mine.get_task_result(task, CallToolResult))

    def text(answer):
        return answer["content"][0]["text"]

    async def offered():
        found, _ = await listed(peer, "tools", "tools")
        support = {tool["name"]: tool.get("execution", {}).get("taskSupport") for tool in found}
        equal((support["slow_compute"], support["failing_job"]), ("optional", "required"))

    async def computing():
        """A task that was seen at work: that of a busy machine may pass between two looks."""
        for _ in range(TRIES):
            task = await begun("slow_compute", {"seconds": 2, "label": "it all"})
            while (state := await mine.get_task(task)).status == "working":
                if state.statusMessage == "computing":
                    return task
                await anyio.sleep(0.02)
            equal(state.status, "completed")
        raise AssertionError(f"no task is computing: {state}")

    async def finished():
        task = await computing()
        await status(task, "completed")
        answer = await result(task)
        equal(text(answer), "Computed it all")
        related = answer["_meta"]["io.modelcontextprotocol/related-task"]
        equal(related, {"taskId": task})

    async def failed():
        task = await begun("failing_job")
        await status(task, "failed")
        answer = await result(task)
        equal((answer["isError"], text(answer)), (True, "This job always fails"))

    async def crashed():
        task = await begun("protocol_error_job")
        await refused(-32603, result(task))

    async def answers_request():
        task = await begun("multi_input")
        await status(task, "input_required")
        answers = json.loads(text(await result(task)))
        equal(answers["name"], {"action": "accept", "content": {"name": "Ada"}})
        equal(answers["confirm"], {"action": "decline"})

    async def cancelled():
        task = await begun("slow_compute", {"seconds": 60})
        equal((await mine.cancel_task(task)).status, "cancelled")
        equal((await mine.get_task(task)).status, "cancelled")

    async def hears_end():
        task = await begun("failing_job")
        while (state := await peer.ears.next("task"))["taskId"] != task:
            pass
        equal(state["status"], "failed")

    async def all_of_them():
        task, cursor, found = await begun("slow_compute", {"seconds": 0}), None, []
        while not found or cursor is not None:
            page = await mine.list_tasks(cursor)
            found += [each.taskId for each in page.tasks]
            cursor = page.nextCursor
        holds(task in found, found)

    await check("learns which tools run as tasks", offered)
    await check("polls a task and gets its result", finished)
    await check("gets the error of a tool from a task", failed)
    await check("is refused the result of a task that crashed", crashed)
    await check("answers what a task asks", answers_request)
    await check("cancels a task", cancelled)
    await check("hears that a task ended", hears_end)
    await check("lists its tasks", all_of_them)
    await check(
        "is refused a call without a task where it needs one",
        refused, -32601, peer.call("failing_job", {}),
    )
    await check(
        "is refused an unknown task with -32602", refused, -32602, mine.get_task("no-such-task")
    )


async def closing_s(sdk, target, mode):
    """The seconds in which a connection of its own closes, over which the server has answered."""
    async with sdk(target, mode) as peer:
        await peer.page("tools", None)
        start = time.monotonic()
    return time.monotonic() - start


async def visit(report, sdk, target, mode):
    expected = sdk.MODES[mode]
    modern = expected >= "2026-07-28"
    kind = "http" if is_url(target) else "http+sse" if is_sse(target) else "stdio"
    report.label = f"python {VERSION} {mode} {kind}"
    check = report.check

    async def negotiated():
        equal(peer.version, expected)

    async def server():
        holds(peer.server and peer.server["name"] and peer.server["version"], peer.server)

    async def comes_back():
        result = await peer.call("test_reconnection")
        text = "The client came back for this."
        equal(result["content"], [{"type": "text", "text": text}])

    async def offers():
        equal([k for k in ("tools", "resources", "prompts") if k not in peer.offered], [])

    doing = "connects"
    try:
        async with sdk(target, mode) as peer:
            report.line(doing)
            # SDK 1 drops the whole connection after an unexpected HTTP status.
            doing = "stays connected"
            await check(f"negotiates {expected}", negotiated)
            # A pinned client sends nothing before its first call.
            if mode != "2026-07-28":
                await check("learns who the server is", server)
                await check("learns what the server offers", offers)
            await tools(check, peer)
            await resources(check, peer, modern)
            await prompts(check, peer)
            await notifications(check, peer, modern)
            await questions(check, peer)
            # Other transports never close the connection from the server's side.
            if kind == "http" and not modern:
                await check("comes back for the answer of a call", comes_back)
            await apps(check, peer)
            if sdk is One:
                await tasks(check, peer)
            # 2026-07-28 has no ping.
            if not modern:
                await check("pings", peer.ping)
            doing, start = "closes", time.monotonic()
        took = time.monotonic() - start
        for _ in range(TRIES - 1):
            if took >= sdk.CLOSES_WITHIN:
                took = await closing_s(sdk, target, mode)
    except Exception as error:
        report.line(doing, error)
    else:
        late = AssertionError(f"after {took:.3f} s") if took >= sdk.CLOSES_WITHIN else None
        report.line("closes", late)


async def main(args):
    sdk = Two if VERSION >= "2" else One
    modes = list(sdk.MODES)
    if args[:1] == ["--mode"] and len(args) > 1 and args[1] in sdk.MODES:
        modes, args = [args[1]], args[2:]
    if len(args) != 1:
        print(f"client.py [--mode {'|'.join(sdk.MODES)}] URL | sse+URL | COMMAND", file=sys.stderr)
        return 2
    report = Report()
    for mode in modes:
        await visit(report, sdk, args[0], mode)
    print(f"{report.passed} passed, {report.failed} failed")
    return 0 if report.failed == 0 else 1


sys.exit(anyio.run(main, sys.argv[1:]))
