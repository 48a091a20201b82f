-module(erlmcp_input).
-moduledoc """
What a handler can ask a client for, in the middle of a call: a form filled in or a URL visited by
the user (elicitation), a completion by the client's model (sampling), the client's roots. Pure.

A handler returns `{input_required, Requests}` or `{input_required, Requests, State}`, where
`Requests` is a map of names of its own to requests made here, and is called again with the answers
in `maps:get(input, Context)` and its state in `maps:get(state, Context)`:

```erlang
handler(_, #{input := #{~"who" := #{~"action" := ~"accept", ~"content" := #{~"name" := Name}}}}) ->
    <<"Hello, ", Name/binary>>;
handler(_, _) ->
    Schema = #{type => object, properties => #{name => #{type => string}}, required => [name]},
    {input_required, #{~"who" => erlmcp_input:elicit(~"What is your name?", Schema)}}.
```

Source: specification 2026-07-28, "Multi Round-Trip Requests", and the client features' pages.
""".

-export([elicit/2, elicit_url/3, sample/1, roots/0]).
-export([check/3, encode/1]).

-export_type([request/0, requests/0]).

-type request() :: #{method := binary(), params := map()}.
-type requests() :: #{binary() => request()}.

-doc """
A form for the user, since 2025-06-18. The schema is an object of strings, numbers, booleans and
enumerations, with `default`, `minimum`, `format` ... where they help. The answer has `action`
(`accept`, `decline`, `cancel`) and, with `accept`, `content`.

## Examples

```erlang
1> erlmcp_input:elicit(~"Name?", #{type => object, properties => #{name => #{type => string}}}).
#{method => ~"elicitation/create",
  params => #{message => ~"Name?",
              requestedSchema => #{type => object, properties => #{name => #{type => string}}}}}
```
""".
-spec elicit(Message :: binary(), Schema :: map()) -> request().
elicit(Message, Schema) ->
    #{method => ~"elicitation/create", params => #{message => Message, requestedSchema => Schema}}.

-doc """
A URL for the user to visit, since 2025-11-25. The answer has `action` alone: that the user agreed
to go, not that he went. The id is one of your own, for clients of 2025-11-25, whose revision wants
one (`erlmcp:elicitation_complete/2`); others are not sent it.

## Examples

```erlang
1> erlmcp_input:elicit_url(~"Connect your account", ~"https://example.com/connect", ~"7").
#{method => ~"elicitation/create",
  params => #{mode => url, message => ~"Connect your account",
              url => ~"https://example.com/connect", elicitationId => ~"7"}}
```
""".
-spec elicit_url(Message :: binary(), Url :: binary(), Id :: binary()) -> request().
elicit_url(Message, Url, Id) ->
    #{method => ~"elicitation/create",
      params => #{mode => url, message => Message, url => Url, elicitationId => Id}}.

-doc """
A completion by the client's model. The parameters are those of `sampling/createMessage`; `messages`
and `maxTokens` are required, `systemPrompt`, `temperature`, `modelPreferences` and others may be
there, and `tools` for clients that offer `sampling.tools`. The answer has `role`, `content` and
`model`.

## Examples

```erlang
1> erlmcp_input:sample(#{messages => [#{role => user, content => erlmcp_content:text(~"Hi")}],
                       maxTokens => 100}).
#{method => ~"sampling/createMessage",
  params => #{messages => [#{role => user, content => #{type => ~"text", text => ~"Hi"}}],
              maxTokens => 100}}
```
""".
-spec sample(#{messages := [map()], maxTokens := pos_integer(), atom() => term()}) -> request().
sample(Params) ->
    #{method => ~"sampling/createMessage", params => Params}.

-doc """
The folders that the client works on. The answer has `roots`, a list of `uri` and, perhaps, `name`.

## Examples

```erlang
1> erlmcp_input:roots().
#{method => ~"roots/list", params => #{}}
```
""".
-spec roots() -> request().
roots() ->
    #{method => ~"roots/list", params => #{}}.

-doc """
Whether a client of a revision with these capabilities can be asked all of that. If not, the refusal
says what is missing.
""".
-spec check(requests(), Capabilities :: map(), erlmcp_revision:revision()) ->
    ok | {error, erlmcp_refusal:refusal()}.
check(Requests, Capabilities, Revision) ->
    Missing = [Needed || _ := Request <- Requests,
                         Needed <- [needs(Request)], not has(Needed, Capabilities, Revision)],
    case Missing of
        [] ->
            ok;
        _ ->
            Required = lists:foldl(fun(Needed, Known) -> merge(Needed, Capabilities, Known) end,
                                   #{}, Missing),
            {error, erlmcp_refusal:new(protocol_error,
                                       [~"the client lacks capabilities that this request needs: ",
                                        lists:join(~", ", [Name || {Name, _} <- Missing])],
                                       #{code => -32021, status => 400,
                                         data => #{~"requiredCapabilities" => Required}})}
    end.

needs(#{method := ~"sampling/createMessage", params := #{tools := _}}) -> {~"sampling", ~"tools"};
needs(#{method := ~"sampling/createMessage"}) -> {~"sampling", none};
needs(#{method := ~"roots/list"}) -> {~"roots", none};
needs(#{method := ~"elicitation/create", params := #{mode := url}}) -> {~"elicitation", ~"url"};
needs(#{method := ~"elicitation/create"}) -> {~"elicitation", ~"form"};
needs(Request) -> error({bad_return, input_request, Request}).

has({~"elicitation", _}, _, Revision) when Revision < '2025-06-18' ->
    false;
has({~"elicitation", ~"url"}, #{~"elicitation" := #{~"url" := _}}, Revision) ->
    Revision >= '2025-11-25';
has({~"elicitation", ~"form"}, #{~"elicitation" := #{} = Modes}, _) ->
    %% An empty object was the form's before there were two modes.
    is_map_key(~"form", Modes) orelse map_size(Modes) =:= 0;
has({~"sampling", ~"tools"}, #{~"sampling" := #{~"tools" := _}}, Revision) ->
    Revision >= '2025-11-25';
has({Name, none}, Capabilities, _) ->
    is_map(maps:get(Name, Capabilities, false));
has(_, _, _) ->
    false.

%% What is missing of a capability; a form is what elicitation is for a client that has none.
merge({~"elicitation", ~"form"}, Capabilities, Required) when
    not is_map_key(~"elicitation", Capabilities)
->
    maps:merge(#{~"elicitation" => #{}}, Required);
merge({Name, none}, _, Required) ->
    maps:merge(#{Name => #{}}, Required);
merge({Name, Part}, _, Required) ->
    Known = maps:get(Name, Required, #{}),
    Required#{Name => Known#{Part => #{}}}.

-doc "Requests as the `inputRequests` of a stateless result.".
-spec encode(requests()) -> iodata().
encode(Requests) ->
    json:encode(#{Name => Request#{params := maps:remove(elicitationId, Params)}
                  || Name := #{params := Params} = Request <- Requests}).
