-module(erlmcp_server).
-moduledoc """
The behaviour of a module that is a server: `server/0` returns its name and version, the other
callbacks what it offers. Give the module as `handler` to `erlmcp:start_server/1`.

A definition may leave `handler` out. The module's `call_tool/3`, `read_resource/3` or
`get_prompt/3` is called for it then. In place of any result these may return `{ok, Result}`,
`{refuse, Refusal}` (`erlmcp:refusal/3`), or a question to the client (`m:erlmcp_input`).

```erlang
-module(calculator).
-behaviour(erlmcp_server).
-export([server/0, tools/0, call_tool/3]).

server() -> #{name => ~"calculator", version => ~"1.0.0"}.

tools() -> [#{name => ~"add", description => ~"Adds two numbers"}].

call_tool(~"add", #{~"a" := A, ~"b" := B}, _Context) -> #{sum => A + B}.
```
""".

-doc "Returns the options, at least `name` and `version`. Options given next to `handler` win.".
-callback server() -> erlmcp:options().
-doc "Returns the tools, in the order of their list. Tools given next to `handler` follow them.".
-callback tools() -> [erlmcp:tool()].
-doc "Returns the resources, as `c:tools/0` does the tools.".
-callback resources() -> [erlmcp:resource()].
-doc "Returns the resource templates, as `c:tools/0` does the tools.".
-callback resource_templates() -> [erlmcp:resource_template()].
-doc "Returns the prompts, as `c:tools/0` does the tools.".
-callback prompts() -> [erlmcp:prompt()].
-doc "Returns the skills.".
-callback skills() -> [erlmcp:skill()].
-doc """
Runs the tool `Name`. Returns text, a list of contents (`m:erlmcp_content`), a map or
`{structured, Value}` as structured content, or `{error, Text | Contents}`, which the model sees.
""".
-callback call_tool(Name :: binary(), Arguments :: map(), erlmcp:context()) -> term().
-doc """
Reads the resource at `Uri`. `Variables` are those of its template, and empty for a resource without
one. Returns text, `{blob, Bytes}`, a map as JSON, contents (`erlmcp_content:text_contents/3`) or a
list of them, or `{error, not_found | Text}`.
""".
-callback read_resource(Uri :: binary(), Variables :: map(), erlmcp:context()) -> term().
-doc """
Returns the prompt `Name`: text, a list of messages, a map with `messages` and `description`, or
`{error, Text}`. A message is `#{role => user | assistant, content => Content}`.
""".
-callback get_prompt(Name :: binary(), Arguments :: map(), erlmcp:context()) -> term().

-optional_callbacks([tools/0, resources/0, resource_templates/0, prompts/0, skills/0]).
-optional_callbacks([call_tool/3, read_resource/3, get_prompt/3]).
