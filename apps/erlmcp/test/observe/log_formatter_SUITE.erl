-module(log_formatter_SUITE).
-moduledoc "Lines of `m:erlmcp_log_formatter`: JSON and text, from entries of any form.".

-export([suite/0, all/0]).
-export([reports_have_their_fields/1, messages_are_one_value/1, ids_of_traces_are_shown/1,
         values_of_any_kind_are_shown/1, long_values_are_cut/1, long_reports_are_cut/1,
         entries_cannot_be_forged/1, a_handler_of_the_log_takes_it/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

reports_have_their_fields(_) ->
    Entry = entry({report, #{what => server_listens, url => ~"http://a:1/mcp", clients => one,
                             pages => [~"http://a:1/health"], text => ~"two words"}}),
    #{~"what" := ~"server_listens", ~"url" := ~"http://a:1/mcp", ~"clients" := ~"one",
      ~"pages" := [~"http://a:1/health"], ~"level" := ~"warning", ~"text" := ~"two words",
      ~"time" := ~"2026-11-24T01:02:03.000004Z"} = Fields = json(Entry),
    7 = map_size(Fields),
    <<"2026-11-24T01:02:03.000004Z warning server_listens clients=one "
      "pages=[\"http://a:1/health\"] text=\"two words\" url=http://a:1/mcp\n">> = text(Entry).

messages_are_one_value(_) ->
    [begin
         #{~"message" := ~"hello 1"} = json(entry(Msg)),
         ~"2026-11-24T01:02:03.000004Z warning hello 1\n" = text(entry(Msg))
     end || Msg <- [{string, "hello 1"}, {string, [~"hello", " 1"]}, {"hello ~b", [1]}]],
    %% OTP's own reports have a text of their own.
    Report = #{label => {supervisor, child_terminated}, report => [{supervisor, mine}]},
    Entry = entry({report, Report}, #{report_cb => fun(_) -> {"supervised ~p", [mine]} end}),
    #{~"message" := ~"supervised mine"} = json(Entry),
    #{~"message" := <<_, _/binary>>} = json(entry({report, [{a, b}]})).

ids_of_traces_are_shown(_) ->
    Ids = #{trace_id => ~"4bf92f3577b34da6a3ce929d0e0e4736", span_id => ~"00f067aa0ba902b7"},
    [begin
         #{~"trace_id" := ~"4bf92f3577b34da6a3ce929d0e0e4736",
           ~"span_id" := ~"00f067aa0ba902b7"} = json(entry(Msg, Ids)),
         true = binary:match(text(entry(Msg, Ids)),
                             ~" span_id=00f067aa0ba902b7 trace_id=4bf92f3577b34da6a3ce929d0e0e4736")
             =/= nomatch
     end || Msg <- [{string, "hello"}, {report, #{what => hello}}]].

values_of_any_kind_are_shown(_) ->
    Values = [self(), make_ref(), fun() -> ok end, {a, ~"b"}, #{{1, 2} => #{3 => [4 | 5]}}, 1.5,
              <<255, 254>>, <<1:3>>, "text", [], null, true, undefined, [$a | ~"b"],
              lists:duplicate(20, ~"x"), #{~"k" => [#{a => #{b => #{c => #{d => 1}}}}]}],
    [begin
         #{~"value" := _} = json(entry({report, #{what => kinds, value => Value}})),
         <<_, _/binary>> = text(entry({report, #{what => kinds, value => Value}}))
     end || Value <- Values],
    #{~"value" := ~"{127,0,0,1}"} =
        json(entry({report, #{what => kinds, value => {127, 0, 0, 1}}})).

long_values_are_cut(_) ->
    Size = fun(Value) -> byte_size(text(entry({report, #{what => long, value => Value}}))) end,
    true = Size(binary:copy(~"a", 8_192)) > 8_192,
    [true = Size(Value) < 9_000 || Value <- [binary:copy(~"a", 100_000),
                                             lists:duplicate(100_000, $a)]],
    %% The bound is one of bytes, and no character is cut in two.
    [true = Size(binary:copy(Character, 5_000)) < 9_000
     || Character <- [~"€", <<"e", 16#301/utf8>>, <<16#301/utf8>>]],
    Whole = binary:copy(~"€", 2_730),
    #{~"value" := Whole} = json(entry({report, #{what => long, value => Whole}})),
    Cut = <<Whole/binary, "...">>,
    #{~"value" := Cut} = json(entry({report, #{what => long, value => binary:copy(~"€", 5_000)}})),
    true = Size(lists:duplicate(100_000, 1)) < 1_000,
    true = Size(maps:from_keys(lists:seq(1, 10_000), 1)) < 2_000,
    true = byte_size(text(entry({string, lists:duplicate(1_000_000, $a)}))) < 9_000,
    true = byte_size(text(entry({"~p", [lists:seq(1, 1_000_000)]}))) < 9_000.

%% An entry with many fields still says what happened, when, and how bad it is.
long_reports_are_cut(_) ->
    Report = (maps:from_keys(lists:seq(1, 1_000), 1))#{what => many, level => mine},
    Fields = json(entry({report, Report}, #{trace_id => ~"4bf92f3577b34da6a3ce929d0e0e4736"})),
    #{~"what" := ~"many", ~"level" := ~"warning", ~"time" := ~"2026-11-24T01:02:03.000004Z",
      ~"trace_id" := ~"4bf92f3577b34da6a3ce929d0e0e4736"} = Fields,
    true = map_size(Fields) =< 104.

%% The bytes of an entry may be a client's.
entries_cannot_be_forged(_) ->
    Forged = ~"a\n2026-11-24T01:02:03.000004Z error forged\r\e[31m\0",
    [begin
         [Line, <<>>] = binary:split(json_line(Entry), ~"\n", [global]),
         #{} = json:decode(Line),
         [_ | Further] = lists:droplast(binary:split(text(Entry), ~"\n", [global])),
         [<<"    ", _/binary>> = Indented || Indented <- Further],
         nomatch = binary:match(text(Entry), [~"\e", ~"\r", ~"\0"])
     end || Entry <- [entry({string, Forged}), entry({"~ts", [Forged]}),
                      entry({report, #{what => told, value => Forged}}),
                      entry({report, #{what => told, Forged => 1}})]].

a_handler_of_the_log_takes_it(_) ->
    [ok = logger:add_handler(?MODULE, logger_std_h,
                             #{formatter => {erlmcp_log_formatter, Config}, level => none})
         =:= ok andalso logger:remove_handler(?MODULE)
     || Config <- [#{}, #{format => json}, #{format => text}]],
    [{error, _} = logger:add_handler(?MODULE, logger_std_h,
                                     #{formatter => {erlmcp_log_formatter, Config}})
     || Config <- [#{format => xml}, #{fromat => json}, #{template => [msg]}]].

entry(Msg) ->
    entry(Msg, #{}).

entry(Msg, Meta) ->
    Time = calendar:rfc3339_to_system_time("2026-11-24T01:02:03.000004Z", [{unit, microsecond}]),
    #{level => warning, msg => Msg, meta => Meta#{time => Time}}.

json(Entry) ->
    json:decode(string:trim(json_line(Entry))).

json_line(Entry) ->
    erlmcp_log_formatter:format(Entry, #{format => json}).

text(Entry) ->
    erlmcp_log_formatter:format(Entry, #{}).
