-module(erlmcp_server).
-moduledoc """
The behaviour of a module that is a server. `server/0` returns its name and version, and `tools/0`
and the like return what it offers. Give the module as `handler` to `erlmcp:start_server/1`, which
calls these functions, as does `erlmcp:reload/1`.

For a definition without `handler`, the module's `call_tool/3`, `read_resource/3` or `get_prompt/3`
is called, in a process of its own for each call unless the definition is `quick`. In place of any
result these may return `{ok, Result}`, `{refuse, Refusal}` (`erlmcp:refusal/3`), or a question to
the client (`m:erlmcp_input`).

```erlang
-module(calculator).
-behaviour(erlmcp_server).
-export([server/0, tools/0, call_tool/3]).

server() -> #{name => ~"calculator", version => ~"1.0.0"}.

tools() -> [#{name => ~"add", description => ~"Adds two numbers"}].

call_tool(~"add", #{~"a" := A, ~"b" := B}, _Context) -> #{sum => A + B}.
```
""".

-doc """
Returns the options of the server, with `name` and `version` unless these are given together with
`handler`. Options that are given there override those of this function.
""".
-callback server() -> erlmcp:options().
-doc """
Returns the tools, in the order of the list that clients get. Tools that are given together with
`handler` follow them.
""".
-callback tools() -> [erlmcp:tool()].
-doc "Returns the resources, in the same way as `c:tools/0`.".
-callback resources() -> [erlmcp:resource()].
-doc "Returns the resource templates, in the same way as `c:tools/0`.".
-callback resource_templates() -> [erlmcp:resource_template()].
-doc "Returns the prompts, in the same way as `c:tools/0`.".
-callback prompts() -> [erlmcp:prompt()].
-doc "Returns the skills, which do not change while the server runs.".
-callback skills() -> [erlmcp:skill()].
-doc """
Runs the tool `Name` with `Arguments`, and returns its result:

- a binary: a text. A string or iodata is no text.
- a list of contents, each of which is a binary or a map that `m:erlmcp_content` makes.
- a map, or `{structured, Value}`: structured content.
- `{error, Text}` or `{error, Contents}`: an error that the model sees. `Text` is a binary, and
  `Contents` a list as above that is not empty.
- `{task, Fun}`, only for a tool with `task_starts => on_return`: `Fun` is called with the context,
  in a task if the call can become one. `Fun` returns the result of the tool.
""".
-callback call_tool(Name :: binary(), Arguments :: map(), erlmcp:context()) -> term().
-doc """
Reads the resource at `Uri`. `Variables` has the values of its template's variables, and is empty
for a resource without a template. Returns text, `{blob, Bytes}`, a map that becomes JSON, contents
(`erlmcp_content:text_contents/3`), a list of contents, or `{error, not_found | Text}`.
""".
-callback read_resource(Uri :: binary(), Variables :: map(), erlmcp:context()) -> term().
-doc """
Returns the prompt `Name`, made with `Arguments`: text, a list of messages, a map with `messages`
and, perhaps, `description`, or `{error, Text}`. A message is
`#{role => user | assistant, content => Content}`. `Content` is a binary, or a map that
`m:erlmcp_content` makes.
""".
-callback get_prompt(Name :: binary(), Arguments :: map(), erlmcp:context()) -> term().

-optional_callbacks([tools/0, resources/0, resource_templates/0, prompts/0, skills/0]).
-optional_callbacks([call_tool/3, read_resource/3, get_prompt/3]).
