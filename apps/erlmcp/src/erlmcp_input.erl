-module(erlmcp_input).
-moduledoc """
What a handler can ask a client for, in the middle of a call: a form filled in or a URL visited by
the user (elicitation), a completion by the client's model (sampling), the client's roots. Pure.

A handler returns `{input_required, Requests}` or `{input_required, Requests, State}`, where
`Requests` is a map of names of its own to requests made here, and is called again with the answers
in `maps:get(input, Context)` and its state in `maps:get(state, Context)`. With
`{input_required, Requests, State, #{once => true}}` a stateless client cannot bring that state a
second time (`docs/input.md`).

```erlang
handler(_, #{input := #{~"who" := #{~"action" := ~"accept", ~"content" := #{~"name" := Name}}}}) ->
    <<"Hello, ", Name/binary>>;
handler(_, _) ->
    {input_required, #{~"who" => erlmcp_input:elicit(~"What is your name?", #{name => string})}}.
```

The content of an accepted form fits its schema: what does not is refused before the handler sees
it. An answer that is not there, declined or cancelled is the handler's to deal with.

Source: specification 2026-07-28, "Multi Round-Trip Requests", and the client features' pages.
""".

-export([elicit/2, elicit_url/3, sample/1, roots/0]).
-export([check/3, encode/1, asked/2, answered/2]).

-export_type([request/0, requests/0, asked/0]).

-type request() :: #{method := binary(), params := map()}.
-type requests() :: #{binary() => request()}.
-doc "What has to be known of requests to tell whether they are answered: the schemas of forms.".
-type asked() :: #{binary() => {form, Schema :: map()} | other}.

-doc """
A form for the user, since 2025-06-18: an object schema of strings, numbers, booleans and
enumerations, with `default`, `minimum`, `format` ... where they help, as JSON Schema or as a
shorthand (`m:erlmcp_schema_shorthand`). The answer has `action` (`accept`, `decline`, `cancel`)
and, with `accept`, `content`.

## Examples

```erlang
1> erlmcp_input:elicit(~"Name?", #{name => string}).
#{method => ~"elicitation/create",
  params => #{message => ~"Name?",
              requestedSchema => #{~"type" => ~"object",
                                   ~"properties" => #{~"name" => #{~"type" => ~"string"}},
                                   ~"required" => [~"name"]}}}
```
""".
-spec elicit(Message :: binary(), Schema :: erlmcp_schema_shorthand:shorthand()) -> request().
elicit(Message, Schema) ->
    case erlmcp_schema_shorthand:expand(Schema) of
        {ok, Json} ->
            #{method => ~"elicitation/create",
              params => #{message => Message, requestedSchema => requested(Schema, Json)}};
        {error, Reason} ->
            error(Reason, [Message, Schema])
    end.

%% A form has the members that it shows; the protocol's subset of JSON Schema has no word for that,
%% and wants them named even if there are none.
requested(Schema, Json) ->
    Form = maps:merge(#{~"type" => ~"object", ~"properties" => #{}}, Json),
    case is_map(Schema) andalso erlmcp_schema_shorthand:is_json_schema(Schema) of
        true -> Form;
        false -> maps:remove(~"additionalProperties", Form)
    end.

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
needs(Request) ->
    error({bad_return, input_request, Request, ~"a request as erlmcp_input makes it"}).

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
    erlmcp_json:encode(#{Name => Request#{params := maps:remove(elicitationId, Params)}
                         || Name := #{params := Params} = Request <- Requests}).

-doc """
What has to be kept of requests until they are answered. A schema that is none is the handler's
fault, as `error({bad_return, requested_schema, Why})`.
""".
-spec asked(requests(), Metaschemas :: #{binary() => erlmcp_schema:compiled()}) -> asked().
asked(Requests, Metaschemas) ->
    maps:map(fun(_, Request) -> form(Request, Metaschemas) end, Requests).

%% What is no request is refused by `check/3`.
form(#{method := ~"elicitation/create", params := #{requestedSchema := Given}}, Metaschemas) ->
    maybe
        {ok, Schema} ?= erlmcp_schema_shorthand:expand(Given),
        {ok, _} ?= erlmcp_schema:compile(Schema, options(#{metaschemas => Metaschemas})),
        {form, Schema}
    else
        {error, {bad_shorthand, _, _} = Reason} ->
            error({bad_return, requested_schema, erlmcp_schema_shorthand:reason(Reason)});
        {error, Reason} ->
            error({bad_return, requested_schema, erlmcp_schema:reason(Reason)})
    end;
form(_, _) ->
    other.

options(Options) ->
    Options#{formats => assert}.

-doc """
The answers to what was asked, without what else came; those that are missing are not in it. A form
that was accepted must fit its schema, and one that was not has no content.
""".
-spec answered(asked(), Responses :: #{binary() => map()}) ->
    {ok, #{binary() => map()}} | {error, erlmcp_refusal:refusal()}.
answered(Asked, Responses) ->
    Answers = maps:with(maps:keys(Asked), Responses),
    fitting([{Name, map_get(Name, Asked), Answer} || Name := Answer <- Answers], Answers).

fitting([], Answers) ->
    {ok, Answers};
fitting([{_, other, _} | Rest], Answers) ->
    fitting(Rest, Answers);
fitting([{Name, {form, Schema}, #{~"action" := ~"accept"} = Answer} | Rest], Answers) ->
    {ok, Compiled} = erlmcp_schema:compile(Schema, options(#{check => false})),
    case erlmcp_schema:validate(maps:get(~"content", Answer, #{}), Compiled) of
        ok -> fitting(Rest, Answers);
        {error, Found} -> {error, erlmcp_params:unfit([~"input ", Name], Found)}
    end;
fitting([{Name, {form, _}, #{~"action" := Action} = Answer} | Rest], Answers) when
    Action =:= ~"decline"; Action =:= ~"cancel"
->
    fitting(Rest, Answers#{Name := maps:remove(~"content", Answer)});
fitting([{Name, {form, _}, Answer} | _], _) ->
    {error, erlmcp_params:mistyped([~"input ", Name, ~", action"], ~"accept, decline or cancel",
                                   maps:get(~"action", Answer, undefined))}.
