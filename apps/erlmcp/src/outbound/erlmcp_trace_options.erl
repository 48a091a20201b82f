-module(erlmcp_trace_options).
-moduledoc """
The option `trace` of servers and clients (`t:erlmcp_tracer:options/0`): its check, and the tracer
that it asks for.

Internal.
""".

-export([check/1, tracer/2]).

%% The headers of each request to a collector.
-define(OWN, [~"accept", ~"connection", ~"content-length", ~"content-type", ~"host", ~"te",
              ~"trailer", ~"transfer-encoding", ~"upgrade"]).

-doc """
Checks the value of the option `trace`. Returns `true`, or a text with the expected value. If a
member of a map is wrong, or `endpoint` is missing, the result is `{Member, Expected}`.
""".
-spec check(erlmcp_tracer:options() | term()) ->
    true | Expected :: binary() | {Member :: term(), Expected :: binary()}.
check({Module, _}) when is_atom(Module) ->
    _ = code:ensure_loaded(Module),
    erlang:function_exported(Module, start_span, 2)
        andalso erlang:function_exported(Module, end_span, 3)
        orelse ~"a module with -behaviour(erlmcp_tracer)";
check(#{endpoint := _} = Options) ->
    case [{Key, Expected} || Key := Value <- Options, Expected <- [member(Key, Value)],
                             Expected =/= true] of
        [] -> true;
        [Wrong | _] -> Wrong
    end;
check(#{}) ->
    {endpoint, ~"an http or https URL; it is required"};
check(_) ->
    ~"a map with endpoint, or a module with its configuration".

member(endpoint, Url) ->
    is_binary(Url) andalso erlmcp_oauth_url:origin(Url) =/= {error, invalid_url}
        orelse ~"an http or https URL";
member(ratio, Ratio) ->
    is_number(Ratio) andalso Ratio >= 0 andalso Ratio =< 1 orelse ~"a number from 0 to 1";
member(headers, Headers) ->
    is_map(Headers) andalso lists:all(fun is_header/1, maps:to_list(Headers))
        orelse ~"a map of names and values of headers that the library does not send itself";
member(resource, Attributes) ->
    is_map(Attributes) andalso lists:all(fun is_attribute/1, maps:to_list(Attributes))
        orelse ~"a map of names, binaries, to binaries, numbers and booleans";
member(tls, Options) ->
    is_list(Options) orelse ~"a list of options of ssl";
member(_, _) ->
    ~"no such option of trace".

is_header({Name, Value}) ->
    is_binary(Name) andalso is_binary(Value)
        andalso is_name(Name) andalso not lists:member(string:lowercase(Name), ?OWN)
        andalso binary:match(Value, [~"\r", ~"\n", ~"\0"]) =:= nomatch;
is_header(_) ->
    false.

is_name(Name) ->
    re:run(Name, "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", [{capture, none}, dollar_endonly]) =:= match.

is_attribute({Name, Value}) ->
    is_binary(Name) andalso erlmcp_json:is_plain(Name)
        andalso (is_binary(Value) orelse is_number(Value) orelse is_boolean(Value)).

-doc """
Returns the tracer for checked options: `{Module, Configuration}` itself, or for a map one that
sends spans to the collector at `endpoint`. `Name` and `Version` are those of the program. For a
map, the calling process becomes a user of that collector, until the process ends. The error comes
for a map if the application does not run.
""".
-spec tracer(erlmcp_tracer:options(), {Name :: binary(), Version :: binary()}) ->
    {ok, erlmcp_tracer:tracer()} | {error, {not_started, erlmcp}}.
tracer({_, _} = Tracer, _) ->
    {ok, Tracer};
tracer(#{endpoint := Endpoint} = Options, {Name, Version}) ->
    {ok, Own} = application:get_key(erlmcp, vsn),
    Library = unicode:characters_to_binary(Own),
    Resource = #{~"service.name" => Name, ~"service.version" => Version,
                 ~"telemetry.sdk.name" => ~"erlmcp", ~"telemetry.sdk.language" => ~"erlang",
                 ~"telemetry.sdk.version" => Library},
    Collector = #{endpoint => Endpoint, headers => maps:get(headers, Options, #{}),
                  tls => maps:get(tls, Options, []),
                  scope => #{version => Library,
                             resource => maps:merge(Resource, maps:get(resource, Options, #{}))}},
    maybe
        {ok, Buffer} ?= erlmcp_span_exporter:use(Collector),
        {ok, erlmcp_otlp_tracer:new(maps:get(ratio, Options, 1), Buffer)}
    end.
