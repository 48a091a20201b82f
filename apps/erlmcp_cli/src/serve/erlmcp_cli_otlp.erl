-module(erlmcp_cli_otlp).
-moduledoc """
Makes the option `trace` of a server from the URL of `erlmcp serve --otlp` and from OpenTelemetry's
environment variables. An empty variable counts as one that is not set.

Sources: opentelemetry-specification, "OpenTelemetry Protocol Exporter" and "Environment Variable
Specification".
""".

-export([given/1, environment/0]).

-define(PATH, ~"/v1/traces").
%% The first one that is set counts.
-define(HEADERS, ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"]).

-doc """
Returns the option `trace` of a server for the collector at the URL `Base`. The path `/v1/traces` is
added to the URL if it is missing. The environment adds headers, attributes of the program and the
part of the traces to record. Variables that turn traces off, or name an endpoint or a protocol, do
not count. The error is a sentence about the first wrong value.
""".
-spec given(Base :: binary()) -> {ok, erlmcp_tracer:options()} | {error, unicode:chardata()}.
given(Base) ->
    options("--otlp", with_path(Base)).

-doc """
Returns the option `trace` of a server for the collector that the environment names. Returns `none`
if the environment names no collector, if `OTEL_SDK_DISABLED` is `true`, or if
`OTEL_TRACES_EXPORTER` is `none`. The error is a sentence about the first wrong value.
""".
-spec environment() -> {ok, erlmcp_tracer:options()} | none | {error, unicode:chardata()}.
environment() ->
    case {is_off(), variable(["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]),
          variable(["OTEL_EXPORTER_OTLP_ENDPOINT"])} of
        {true, _, _} -> none;
        {false, {Name, Url}, _} -> spoken(Name, Url);
        {false, none, {Name, Base}} -> spoken(Name, with_path(Base));
        {false, none, none} -> none
    end.

is_off() ->
    is("true", "OTEL_SDK_DISABLED") orelse is("none", "OTEL_TRACES_EXPORTER").

is(Value, Name) ->
    case variable([Name]) of
        {_, Text} -> string:equal(Text, Value, true);
        none -> false
    end.

%% A receiver of OTLP/HTTP takes Protobuf and JSON, so JSON is sent for both. One of gRPC takes
%% neither.
spoken(Source, Url) ->
    case variable(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"]) of
        {Name, Protocol} when Protocol =/= ~"http/json", Protocol =/= ~"http/protobuf" ->
            {error, [Name, ": expected http/json"]};
        _ ->
            options(Source, Url)
    end.

with_path(Base) ->
    case uri_string:parse(Base) of
        #{path := Path} = Parts ->
            Above = string:trim(Path, trailing, "/"),
            case string:find(Above, ?PATH, trailing) of
                ?PATH -> Base;
                _ -> uri_string:recompose(Parts#{path := <<Above/binary, ?PATH/binary>>})
            end;
        {error, _, _} ->
            Base
    end.

options(Source, Url) ->
    maybe
        {ok, Headers} ?= pairs(?HEADERS),
        {ok, Attributes} ?= pairs(["OTEL_RESOURCE_ATTRIBUTES"]),
        {ok, Ratio} ?= ratio(variable(["OTEL_TRACES_SAMPLER"])),
        Resource = maps:merge(Attributes, service(variable(["OTEL_SERVICE_NAME"]))),
        Options = #{endpoint => Url, headers => Headers, resource => Resource, ratio => Ratio},
        case erlmcp_trace_options:check(Options) of
            true -> {ok, Options};
            {Member, Expected} -> {error, [source(Member, Source), ": expected ", Expected]}
        end
    end.

source(endpoint, Source) -> Source;
source(headers, _) -> element(1, variable(?HEADERS));
source(resource, _) -> "OTEL_RESOURCE_ATTRIBUTES".

%% The value may be a key of the collector's, so it is in no sentence.
pairs(Names) ->
    case variable(Names) of
        none ->
            {ok, #{}};
        {Name, Text} ->
            Pairs = [pair(binary:split(Part, ~"="))
                     || Part <- binary:split(Text, ~",", [global]), string:trim(Part) =/= ~""],
            case lists:member(none, Pairs) of
                true -> {error, [Name, ": expected NAME=VALUE,NAME=VALUE, each percent-encoded"]};
                false -> {ok, maps:from_list(Pairs)}
            end
    end.

pair([Name, Value]) ->
    try {string:trim(Name), uri_string:percent_decode(string:trim(Value))} of
        {~"", _} -> none;
        Pair -> Pair
    catch
        throw:{error, _, _} -> none
    end;
pair(_) ->
    none.

service({_, Name}) -> #{~"service.name" => Name};
service(none) -> #{}.

%% A request with a parent is recorded if its parent is, so there are no other samplers.
ratio(none) -> {ok, 1};
ratio({_, ~"parentbased_always_on"}) -> {ok, 1};
ratio({_, ~"parentbased_always_off"}) -> {ok, 0};
ratio({_, ~"parentbased_traceidratio"}) -> part(variable(["OTEL_TRACES_SAMPLER_ARG"]));
ratio({Name, _}) ->
    {error, [Name, ": expected parentbased_always_on, parentbased_always_off or "
                   "parentbased_traceidratio"]}.

part(none) ->
    {ok, 1};
part({Name, Text}) ->
    try erlmcp_cli_values:seconds(binary_to_list(Text)) of
        Ratio when Ratio =< 1 -> {ok, Ratio};
        _ -> not_a_part(Name)
    catch
        error:badarg -> not_a_part(Name)
    end.

not_a_part(Name) ->
    {error, [Name, ": expected a number from 0 to 1"]}.

%% The first of these variables that has a value.
variable(Names) ->
    case [{Name, unicode:characters_to_binary(Value)}
          || Name <- Names, Value <- [os:getenv(Name, "")], Value =/= ""] of
        [Variable | _] -> Variable;
        [] -> none
    end.
