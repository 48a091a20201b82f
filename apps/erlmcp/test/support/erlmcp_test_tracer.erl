-module(erlmcp_test_tracer).
-moduledoc """
A tracer as an application has its own: it tells a process of each span that has ended. Its
configuration is that process, or `crash`, `{crash, Argument}` or `nonsense` for a tracer that
fails, or `#{receiver := pid(), ratio := 0}` for spans that are not recorded.
""".

-behaviour(erlmcp_tracer).

-compile(nowarn_missing_spec_documented).

-export([start_span/2, end_span/3]).
-export([span/1, span/2, none/0]).

-define(WAIT, 20_000).

start_span(_, crash) ->
    error(planted);
start_span(_, {crash, Argument}) ->
    lists:last(Argument);
start_span(_, nonsense) ->
    nonsense;
start_span(#{parent := Parent} = Start, Config) ->
    Context = case Parent of
        none -> #{trace_id => id(16), sampled => is_pid(Config)};
        #{} -> maps:with([trace_id, sampled, state, baggage], Parent)
    end,
    Own = maps:merge(Context#{span_id => id(8)}, maps:with([baggage], Start)),
    {Own, case Own of
              #{sampled := true} -> {Own, Start};
              #{sampled := false} -> none
          end}.

end_span({Context, Start}, End, Receiver) ->
    Attributes = maps:merge(map_get(attributes, Start), map_get(attributes, End)),
    Receiver ! {span, maps:merge(maps:merge(Start, End), Context#{attributes => Attributes})},
    ok.

id(Bytes) ->
    binary:encode_hex(crypto:strong_rand_bytes(Bytes), lowercase).

%% The next span with a name that has ended.
span(Name) ->
    span(Name, #{}).

%% That, with these attributes, too.
span(Name, Attributes) ->
    receive
        {span, #{name := Name, attributes := Known} = Span} ->
            Attributes = maps:with(maps:keys(Attributes), Known),
            true = map_get(began, Span) =< map_get(ended, Span),
            Span
    after ?WAIT -> ct:fail({no_span, Name, process_info(self(), messages)})
    end.

%% Fails if a span has ended and was not asked for.
none() ->
    receive
        {span, Span} -> ct:fail({unexpected, Span})
    after 0 -> ok
    end.
