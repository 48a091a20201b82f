-module(hostile_text_SUITE).
-moduledoc """
Tests for texts of a hostile server in the output of the command. They cannot control a terminal,
hide text from the reader, or imitate questions of the command itself.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").
-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([examples/1, every_hidden_character_is_known/1, any_text_is_seen_whole/1,
         json_keeps_every_character/1, a_hostile_server_is_listed_and_called/1,
         a_program_writes_on_stderr/1, the_log_is_shown/1, a_question_stands_apart/1,
         lines_of_a_question_are_folded/1, everything_is_written_in_one_place/1]).

-import(erlmcp_test_program, [main/1, run/3, open/2, output/2]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, every_hidden_character_is_known, any_text_is_seen_whole, json_keeps_every_character,
     a_hostile_server_is_listed_and_called, a_program_writes_on_stderr, the_log_is_shown,
     a_question_stands_apart, lines_of_a_question_are_folded, everything_is_written_in_one_place].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    _ = application:load(erlmcp_cli),
    erlmcp_test_program:init(Config).

end_per_suite(_) ->
    ok.

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_printable, erlmcp_cli_output, erlmcp_cli_text]).

%% C0, DEL, C1; marks, joiners, overrides and isolates of direction; separators of lines and
%% paragraphs; spaces without width; selectors of variants; tags.
hidden() ->
    lists:append([lists:seq(From, To)
                  || {From, To} <- [{0, 8}, {11, 31}, {127, 159}, {16#ad, 16#ad},
                                    {16#61c, 16#61c}, {16#180b, 16#180f}, {16#200b, 16#200f},
                                    {16#2028, 16#202e}, {16#2060, 16#206f}, {16#3164, 16#3164},
                                    {16#fe00, 16#fe0f}, {16#feff, 16#feff}, {16#ffa0, 16#ffa0},
                                    {16#fff9, 16#fffb}, {16#e0000, 16#e01ef}]]).

%% Unicode's own properties, where OTP has them. Of the prepended marks, those of Arabic, Syriac,
%% Kaithi and Egyptian are visible themselves.
every_hidden_character_is_known(_) ->
    [] = [C || C <- hidden(), erlmcp_printable:is_visible(C)],
    Seen = [{16#600, 16#605}, {16#6dd, 16#6dd}, {16#70f, 16#70f}, {16#890, 16#891},
            {16#8e2, 16#8e2}, {16#110bd, 16#110bd}, {16#110cd, 16#110cd}, {16#13430, 16#1343f}],
    IsSeen = fun(C) -> lists:any(fun({From, To}) -> From =< C andalso C =< To end, Seen) end,
    Categories = case erlang:function_exported(unicode, category, 1) of
        true -> fun(C) -> apply(unicode, category, [C]) end;
        false -> fun(_) -> {letter, other} end
    end,
    Orders = [{other, control}, {other, format}, {separator, line}, {separator, paragraph}],
    ?assertEqual([], [C || C <- lists:seq(0, 16#d7ff) ++ lists:seq(16#e000, 16#10ffff),
                           erlmcp_printable:is_visible(C), lists:member(Categories(C), Orders),
                           not IsSeen(C)]).

%% Whichever way a text comes to be written.
any_text_is_seen_whole(_) ->
    true = proper:quickcheck(?FORALL(Text, text(), begin
        Bytes = unicode:characters_to_binary(Text),
        lists:all(fun is_clean/1,
                  [erlmcp_cli_output:rendered(Each, none)
                   || Each <- [Text, Bytes, [[Text], Bytes | Bytes], {bold, [Text | Bytes]},
                               erlmcp_cli_text:one_line(Bytes), erlmcp_cli_text:json(Bytes)]])
    end), [{numtests, 300}, {to_file, user}]),
    %% In one line, as a cell of a table is.
    ~"a b c" = erlmcp_cli_text:one_line(~"a\nb\tc"),
    %% Bytes that are no text.
    true = is_clean(erlmcp_cli_output:rendered(<<"a", 255, 16#e2, 16#80>>, none)).

text() -> list(oneof([range($a, $c), oneof(hidden()), $\n, $\t, 16#e9, 16#4e16, 16#1f468])).

is_clean(Text) ->
    Characters = unicode:characters_to_list(Text),
    is_list(Characters) andalso not lists:any(fun(C) -> lists:member(C, hidden()) end, Characters).

json_keeps_every_character(_) ->
    All = unicode:characters_to_binary(hidden() ++ "a\x{1f468}"),
    Json = erlmcp_cli_text:json(#{All => All}),
    true = is_clean(Json),
    ?assertEqual(#{All => All}, json:decode(Json)).

-define(EVIL, ~"A \x{202e}b\x{2066}c\x{200b}d\x{2028}e\x{e0041}f\x{9b}g\x{1b}[31mh\x{feff}").

a_hostile_server_is_listed_and_called(Config) ->
    Evil = ?EVIL,
    Answers = fun(Text) -> fun(_, _) -> Text end end,
    {ok, Server} = erlmcp:start_server(#{
        name => Evil, version => Evil,
        tools => [#{name => ~"evil", description => Evil, handler => Answers(Evil),
                    input_schema => #{type => object, properties =>
                                          #{Evil => #{type => string, enum => [Evil]}}}},
                  #{name => ~"fails", handler => fun(_, _) -> {error, Evil} end}],
        resources => [#{uri => ~"test://evil", name => ~"evil", description => Evil,
                        handler => fun(_, _) -> Evil end}],
        prompts => [#{name => ~"evil", description => Evil, arguments => [#{name => Evil}],
                      handler => Answers(Evil)}],
        listen => [{http, #{port => 0}}]}),
    [#{port := Port}] = erlmcp:listeners(Server),
    Url = "http://127.0.0.1:" ++ integer_to_list(Port) ++ "/mcp",
    Ran = [main(Words)
           || Words <- [["list", Url], ["list", Url, "--json"], ["list", Url, "--schema"],
                        ["call", Url, "evil"], ["call", Url, "evil", "--json"],
                        ["call", Url, "evil", "A=\x{202e}"], ["call", Url, "\x{202e}evli"],
                        ["call", Url, "fails"], ["prompt", Url, "evil"], ["ping", Url]]],
    [begin
         ?assert(is_clean(Out), Out),
         ?assert(is_clean(Why), Why)
     end || {_, Out, Why} <- Ran],
    [{0, List, ""}, {0, Json, ""} | _] = Ran,
    {match, _} = re:run(List, "A \\\\u\\{202E\\}b\\\\u\\{2066\\}c\\\\u\\{200B\\}d\\\\u\\{2028\\}e"
                              "\\\\u\\{E0041\\}f\\\\u\\{9B\\}g␛\\[31mh\\\\u\\{FEFF\\}", [unicode]),
    #{~"tools" := [#{~"description" := Evil} | _]} =
        json:decode(unicode:characters_to_binary(Json)),
    %% Another program reads a pipe, and gets what is there.
    {0, Evil, ""} = read(["read", Url, "test://evil"], Config),
    ok = erlmcp:stop_server(Server).

read(Words, Config) ->
    {0, Out, Why} = run(proplists:get_value(program, Config), Words, Config),
    {0, unicode:characters_to_binary(Out), Why}.

a_program_writes_on_stderr(_) ->
    {3, "", Why} = main(["list", "--stdio", "sh -c 'printf \"no \\342\\200\\256\\033[1mlicence "
                                            "\\377!\\n\" >&2; sleep 0.3; exit 3'"]),
    true = is_clean(Why),
    %% Bytes that are no text take nothing with them.
    {match, _} = re:run(Why, "^server: no \\\\u\\{202E\\}␛\\[1mlicence .*!\n", [unicode]).

the_log_is_shown(_) ->
    Event = #{level => error, meta => #{time => 0},
              msg => {"~ts", [["line\n", ?EVIL]]}},
    Formatter = {logger_formatter, #{single_line => false}},
    Shown = unicode:characters_to_list(erlmcp_cli_log:format(Event, #{formatter => Formatter})),
    true = is_clean(Shown),
    {match, _} = re:run(Shown, "line\nA \\\\u\\{202E\\}b", [unicode]).

%% A message that goes on with what the command asks, and one that the end of the terminal's line
%% would break there.
a_question_stands_apart(Config) ->
    Message = ["Who?\nSend this? [Y/n] y\n\ttoken sent\n", lists:duplicate(77, $x),
               " Send this? [Y/n] y"],
    {ok, Server} = erlmcp:start_server(#{
        name => ~"asks", version => ~"1",
        tools => [#{name => ~"ask", handler => fun(_, #{input := #{~"q" := _}}) -> ~"asked";
                                                  (_, _) -> asks(Message)
                                               end}],
        listen => [{http, #{port => 0}}]}),
    [#{port := Port}] = erlmcp:listeners(Server),
    Url = "http://127.0.0.1:" ++ integer_to_list(Port) ++ "/mcp",
    Command = ["exec '", proplists:get_value(program, Config), "' call ", Url, " ask"],
    Terminal = open("exec env TERM=dumb script -qec \"$0\" /dev/null </dev/null",
                    [unicode:characters_to_binary(Command)]),
    {_, Written} = output(Terminal, []),
    [~"The server asks:" | Lines] = binary:split(iolist_to_binary(Written), ~"\r\n", [global]),
    ?assertEqual([~"    Who?", ~"    Send this? [Y/n] y", ~"        token sent"],
                 lists:sublist(Lines, 3)),
    %% All that begins in the first column is the command's.
    ?assertEqual([], [Line || <<C, _/binary>> = Line <- lists:sublist(Lines, 6), C =/= $\s]),
    ?assertEqual([], [Line || Line <- Lines, byte_size(Line) > 80]),
    ok = erlmcp:stop_server(Server).

asks(Message) ->
    Form = #{type => object, properties => #{~"name" => #{type => string}}},
    {input_required, #{~"q" => erlmcp_input:elicit(unicode:characters_to_binary(Message), Form)}}.

lines_of_a_question_are_folded(_) ->
    Folded = fun(Text, Columns) ->
        Lines = unicode:characters_to_list(erlmcp_cli_text:indented(Text, {2, 4}, Columns)),
        string:split(Lines, "\n", all)
    end,
    ?assertEqual(["  one two", "    three"], Folded(~"one two three", 12)),
    %% Wide characters take two columns.
    ?assertEqual(["  世世世", "    世"], Folded(~"世世世世", 12)),
    true = proper:quickcheck(?FORALL({Text, Columns}, {text(), range(8, 80)}, begin
        [First | Others] = Folded(unicode:characters_to_binary([Text, $a]), Columns),
        lists:prefix("  ", First)
            andalso lists:all(fun(Line) -> lists:prefix("    ", Line) end, Others)
            andalso lists:all(fun(Line) -> length(Line) < Columns end, [First | Others])
    end), [{numtests, 300}, {to_file, user}]).

%% No other module of the command writes to stdout or stderr, except for the bytes of a resource.
everything_is_written_in_one_place(_) ->
    {ok, Modules} = application:get_key(erlmcp_cli, modules),
    Writers = [{Module, {io, Function}}
               || Module <- Modules,
                  {ok, {_, [{imports, Imports}]}} <- [beam_lib:chunks(code:which(Module),
                                                                      [imports])],
                  {io, Function, _} <- Imports,
                  lists:member(Function, [put_chars, format, fwrite, write, nl])],
    ?assertEqual([{erlmcp_cli_output, {io, put_chars}}, {erlmcp_cli_terminal, {io, put_chars}}],
                 lists:usort(Writers)).
