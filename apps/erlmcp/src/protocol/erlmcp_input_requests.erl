-module(erlmcp_input_requests).
-moduledoc """
The requests of a handler to its client (`m:erlmcp_input`): the check that the client can answer
them, their JSON, and the check of the answers. Pure.

Internal.
""".

-export([check/3, answerable/3, encode/1, forms/2, answers/2]).

-export_type([forms/0]).

-doc """
For each request, by its name: `form` with the schema of a form, or `other` for a request of another
kind.
""".
-type forms() :: #{binary() => {form, Schema :: map()} | other}.

-doc """
Returns `ok` if a client with `Capabilities` can answer all requests in `Revision`. The refusal
names the capabilities that are missing. A term that is not a request of `m:erlmcp_input` is the
handler's fault: the function raises `error({bad_return, input_request, Term, Expected})`.
""".
-spec check(erlmcp_input:requests(), Capabilities :: map(),
            Revision :: erlmcp_revision:revision()) ->
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
                                        lists:join(~", ", names(Missing))],
                                       #{code => -32021, status => 400,
                                         data => #{~"requiredCapabilities" => Required}})}
    end.

names(Missing) -> lists:uniq([Name || {Name, _} <- Missing]).

-doc """
Returns those of the requests of a task, which are JSON already, that a client with `Capabilities`
can answer in `Revision`.
""".
-spec answerable(#{Key :: binary() => Request :: map()}, Capabilities :: map(),
                 Revision :: erlmcp_revision:revision()) -> #{Key :: binary() => Request :: map()}.
answerable(Requests, Capabilities, Revision) ->
    maps:filter(fun(_, Request) -> has(needs(keyed(Request)), Capabilities, Revision) end,
                Requests).

%% As `m:erlmcp_input` made it, with what the capability depends on.
keyed(#{~"method" := Method, ~"params" := #{~"mode" := ~"url"}}) ->
    #{method => Method, params => #{mode => url}};
keyed(#{~"method" := Method, ~"params" := #{~"tools" := Tools}}) ->
    #{method => Method, params => #{tools => Tools}};
keyed(#{~"method" := Method}) ->
    #{method => Method, params => #{}}.

needs(#{method := ~"sampling/createMessage", params := #{tools := _}}) -> {~"sampling", ~"tools"};
needs(#{method := ~"sampling/createMessage", params := #{}}) -> {~"sampling", none};
needs(#{method := ~"roots/list", params := #{}}) -> {~"roots", none};
needs(#{method := ~"elicitation/create", params := #{mode := url}}) -> {~"elicitation", ~"url"};
needs(#{method := ~"elicitation/create", params := #{}}) -> {~"elicitation", ~"form"};
needs(Request) ->
    error({bad_return, input_request, Request, ~"a request as erlmcp_input makes it"}).

has({~"elicitation", _}, _, Revision) when Revision < '2025-06-18' ->
    false;
has({~"elicitation", ~"url"}, #{~"elicitation" := #{~"url" := _}}, Revision) ->
    Revision >= '2025-11-25';
has({~"elicitation", ~"form"}, #{~"elicitation" := #{} = Modes}, _) ->
    %% Before elicitation had two modes, an empty object meant forms.
    is_map_key(~"form", Modes) orelse map_size(Modes) =:= 0;
has({~"sampling", ~"tools"}, #{~"sampling" := #{~"tools" := _}}, Revision) ->
    Revision >= '2025-11-25';
has({Name, none}, Capabilities, _) ->
    is_map(maps:get(Name, Capabilities, false));
has(_, _, _) ->
    false.

%% Adds a missing capability to the required ones. A client without `elicitation` needs only that
%% capability for a form, and not its mode.
merge({~"elicitation", ~"form"}, Capabilities, Required) when
    not is_map_key(~"elicitation", Capabilities)
->
    maps:merge(#{~"elicitation" => #{}}, Required);
merge({Name, none}, _, Required) ->
    maps:merge(#{Name => #{}}, Required);
merge({Name, Part}, _, Required) ->
    Known = maps:get(Name, Required, #{}),
    Required#{Name => Known#{Part => #{}}}.

-doc """
Encodes requests as the `inputRequests` of a stateless result, without the ids of elicitations.
""".
-spec encode(erlmcp_input:requests()) -> iodata().
encode(Requests) ->
    erlmcp_json:encode(#{Name => Request#{params := maps:remove(elicitationId, Params)}
                         || Name := #{params := Params} = Request <- Requests}).

-doc """
Returns the forms of requests. The requests need not have passed `check/3`. An invalid schema is the
handler's fault: the function raises `error({bad_return, requested_schema, Why})`. `Metaschemas` are
those of `erlmcp_metaschemas:compiled/0`, or `#{}`.
""".
-spec forms(erlmcp_input:requests(), Metaschemas :: #{binary() => erlmcp_schema:compiled()}) ->
    forms().
forms(Requests, Metaschemas) ->
    maps:map(fun(_, Request) -> form(Request, Metaschemas) end, Requests).

%% `check/3` refuses invalid requests.
form(#{method := ~"elicitation/create", params := #{requestedSchema := Given}}, Metaschemas) ->
    maybe
        {ok, Schema} ?= erlmcp_schema_shorthand:expand(Given),
        {ok, _} ?= erlmcp_schema:compile(Schema, options(#{metaschemas => Metaschemas})),
        {form, Schema}
    else
        {error, Reason} ->
            error({bad_return, requested_schema, erlmcp_schema:reason(Reason)})
    end;
form(_, _) ->
    other.

options(Options) ->
    Options#{formats => assert}.

-doc """
Returns the members of `Responses` that answer the requests of `Forms`, and no others. An answer may
be missing. The answer to a form must have the action `accept`, `decline` or `cancel`. The content
of an accepted form must fit its schema; that of any other form is left out. Answers to other
requests are not checked. The refusal is for one of the answers that do not fit.
""".
-spec answers(Forms :: forms(), Responses :: #{binary() => map()}) ->
    {ok, #{binary() => map()}} | {error, erlmcp_refusal:refusal()}.
answers(Forms, Responses) ->
    Answers = maps:with(maps:keys(Forms), Responses),
    fitting([{Name, map_get(Name, Forms), Answer} || Name := Answer <- Answers], Answers).

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
