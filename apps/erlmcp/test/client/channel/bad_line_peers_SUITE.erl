-module(bad_line_peers_SUITE).
-moduledoc """
Servers that misbehave on TCP and as child processes, as `m:bad_http_peers_SUITE` has them on HTTP.
A line that belongs to no exchange ends none. So a call ends by its deadline here where the other
suite has a reason.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([never_in_time/1, late_answer_is_nobodys/1, answers_twice/1, connection_ends/1,
         wrong_messages/1, unreadable_responses/1, unreadable_others/1, nobodys_lines/1,
         unreadable_lines_are_logged_in_short/1,
         too_large_lines/1, endless_lines/1, endless_progress/1,
         endless_questions/1, endless_pages/1, slow_reader_of_progress/1,
         floods_for_a_subscriber/1, one_slow_call_delays_nobody/1, does_not_read/1,
         no_connection_lasts/1]).
-export([log/2]).
-export([child_never_answers/1, child_ends/1, child_writes_200_mib/1, child_floods/1,
         child_cannot_be_started/1, no_child_is_left/1,
         flooding_child_ends_with_a_killed_client/1]).

-import(erlmcp_test_suite, [watch/1]).
-import(erlmcp_test_peer, [result/2, spaces/0, drip/2, flood/3]).

-define(WAIT, 30_000).
-define(SLACK, 10_000).
-define(SIZE, 209_715_200).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, tcp}, {group, stdio}].

groups() ->
    [{tcp, [], [never_in_time, late_answer_is_nobodys, answers_twice, connection_ends,
                wrong_messages, unreadable_responses, unreadable_others, nobodys_lines,
                unreadable_lines_are_logged_in_short, too_large_lines, endless_lines,
                endless_progress, endless_questions, endless_pages, slow_reader_of_progress,
                floods_for_a_subscriber,
                one_slow_call_delays_nobody, does_not_read, no_connection_lasts]},
     {stdio, [], [child_never_answers, child_ends, child_writes_200_mib, child_floods,
                  child_cannot_be_started, no_child_is_left,
                  flooding_child_ends_with_a_killed_client]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{watch, erlmcp_test_watch:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_watch:stop(watch(Config)).

%% A key of a megabyte that comes twice is the reason why the line is no JSON.
unreadable_lines_are_logged_in_short(_) ->
    Key = binary:copy(~"k", 1_000_000),
    Line = [~B'{"', Key, ~B'":1,"', Key, ~B'":2}', $\n],
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => self()}),
    with_client(fun(Message) -> [Line, text(Message, ~"read")] end, #{}, fun(Client) ->
        {ok, _} = erlmcp_client:call_tool(Client, ~"t", #{})
    end),
    ok = logger:remove_handler(?MODULE),
    receive {logged, Report} -> true = erlang:external_size(Report) < 10_000
    after ?WAIT -> error(not_logged)
    end.

log(#{msg := {report, #{what := not_json} = Report}}, #{config := Test}) ->
    Test ! {logged, Report};
log(_, _) ->
    ok.

never_in_time(Config) ->
    each(Config, #{timeout => 300}, {timeout, 300},
         [{silence, fun(_) -> [] end},
          {byte_by_byte, fun(_) -> [fun(Socket) -> drip(Socket, ~"{") end] end},
          {blank_lines_slowly, fun(_) -> [fun(Socket) -> drip(Socket, ~"\n") end] end}]).

late_answer_is_nobodys(Config) ->
    Test = self(),
    Late = fun(#{~"params" := #{~"arguments" := #{~"late" := true}}} = Message) ->
                  [fun(_) -> Test ! {late, self()}, receive go -> ok end end,
                   text(Message, ~"late")];
              (Message) ->
                  [text(Message, ~"in time")]
           end,
    _ = erlmcp_test_watch:run(fun() ->
        with_client(Late, #{}, fun(Client) ->
            {ok, _} = erlmcp_client:server(Client),
            [begin
                 {error, {timeout, 1000}} = erlmcp_client:call_tool(Client, ~"t", #{late => true},
                                                                    #{timeout => 1000}),
                 receive {late, Peer} -> Peer ! go end,
                 {ok, #{~"content" := [#{~"text" := ~"in time"}]}} =
                     erlmcp_client:call_tool(Client, ~"t", #{})
             end || _ <- [1, 2]]
        end)
    end, watch(Config)).

answers_twice(Config) ->
    Answer = fun(#{~"params" := #{~"arguments" := #{~"n" := N}}} = Message) ->
        [text(Message, integer_to_binary(N)), text(Message, ~"again")]
    end,
    _ = erlmcp_test_watch:run(fun() ->
        with_client(Answer, #{}, fun(Client) ->
            [begin
                 Text = integer_to_binary(N),
                 {ok, #{~"content" := [#{~"text" := Text}]}} =
                     erlmcp_client:call_tool(Client, ~"t", #{n => N})
             end || N <- lists:seq(1, 50)]
        end)
    end, watch(Config)).

connection_ends(Config) ->
    each(Config, #{}, {closed, closed},
         [{at_once, fun(_) -> [close] end},
          {in_a_line, fun(_) -> [~"{\"jsonrpc\":", close] end},
          {after_a_line, fun(_) -> [~"{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n", close] end}]).

wrong_messages(Config) ->
    Ok = #{content => []},
    Wrong = fun(Rest) -> fun(#{~"id" := Id}) -> [Rest#{jsonrpc => ~"2.0", id => Id}] end end,
    each(Config, #{}, protocol,
         [{both, Wrong(#{result => Ok, error => #{code => 1, message => ~"no"}})},
          {neither, Wrong(#{})},
          {error_is_text, Wrong(#{error => ~"no"})},
          {code_is_text, Wrong(#{error => #{code => ~"1", message => ~"no"}})},
          {result_is_text, Wrong(#{result => ~"yes"})},
          {no_version, fun(#{~"id" := Id}) -> [#{id => Id, result => Ok}] end},
          {content_is_text, fun(Message) -> [complete(Message, #{content => ~"yes"})] end}]).

%% The id of a response tells its call, although the rest cannot be decoded.
unreadable_responses(Config) ->
    Orders = [{id_first, ~B'{"jsonrpc":"2.0","id":ID,"result":VALUE}'},
              {id_first_with_spaces, ~B'{"jsonrpc": "2.0", "id": ID, "result": VALUE}'},
              {id_last, ~B'{"result":VALUE,"jsonrpc":"2.0","id":ID}'},
              {id_last_of_error, ~B'{"error":VALUE,"jsonrpc":"2.0","id":ID}'},
              {sorted, ~B'{"id":ID,"jsonrpc":"2.0","result":VALUE}'},
              {error_sorted, ~B'{"error":VALUE,"id":ID,"jsonrpc":"2.0"}'}],
    each(Config, #{timeout => 5_000, limits => #{members => 1_000}}, protocol,
         [{{Order, Kind}, fun(#{~"id" := Id}) -> [unreadable(Text, Id, Value)] end}
          || {Order, Text} <- Orders, {Kind, Value} <- unreadable()]).

%% Such messages are no response to the call, which goes on.
unreadable_others(Config) ->
    Texts = [~B'{"jsonrpc":"2.0","method":"x","params":{"id":ID,"result":VALUE}}',
             ~B'{"jsonrpc":"2.0","id":ID,"method":"x","params":{"result":VALUE}}',
             ~B'{"method":"x","params":{"result":VALUE},"jsonrpc":"2.0","id":ID}',
             ~B'{"result":VALUE,"id":{"a":1,"jsonrpc":"2.0","id":ID}}',
             ~B'{"result":VALUE,"x":{"id":ID,"jsonrpc":"2.0"}}',
             ~B'{"jsonrpc":"2.0","id":"ID","result":VALUE}',
             ~B'{"jsonrpc":"2.0","id":9999,"result":VALUE}'],
    _ = erlmcp_test_watch:run(fun() ->
        with_client(fun(#{~"id" := Id} = Message) ->
                        [unreadable(Text, Id, Value)
                         || Text <- Texts, {_, Value} <- unreadable()] ++ [text(Message, ~"ok")]
                    end, #{limits => #{members => 1_000}}, fun(Client) ->
            {ok, #{~"content" := [#{~"text" := ~"ok"}]}} =
                erlmcp_client:call_tool(Client, ~"t", #{})
        end)
    end, watch(Config)).

unreadable() ->
    [{too_deep, [binary:copy(~"[", 100), binary:copy(~"]", 100)]},
     {too_many_members, json:encode(#{integer_to_binary(N) => N || N <- lists:seq(1, 1_001)})},
     {duplicate_key, ~B'{"a":1,"a":2}'},
     {no_json, ~B'{"a":NaN}'}].

unreadable(Text, Id, Value) ->
    WithId = binary:replace(Text, ~"ID", integer_to_binary(Id)),
    [binary:replace(WithId, ~"VALUE", iolist_to_binary(Value)), $\n].

%% Such lines belong to no known exchange, and programs print where they should not.
nobodys_lines(Config) ->
    Ok = #{content => []},
    Lines = [#{jsonrpc => ~"2.0", id => 999, result => Ok},
             #{jsonrpc => ~"2.0", id => ~"2", result => Ok},
             #{jsonrpc => ~"2.0", id => 2.0, result => Ok},
             #{jsonrpc => ~"2.0", id => null, result => Ok},
             #{jsonrpc => ~"2.0", id => #{}, result => Ok},
             #{jsonrpc => ~"2.0", result => Ok},
             ~"Listening on port 80\n", ~"\n", ~"[]\n", ~"[[]]\n", ~"7\n", ~"null\n",
             <<255, 254, 0, "\n">>,
             ~"{\"jsonrpc\":\n",
             ~"{\"id\":1,\"id\":2}\n",
             [binary:copy(~"[", 100_000), $\n],
             [binary:copy(~"{\"a\":", 100_000), $\n],
             [~"{\"a\":", binary:copy(~"9", 1_000_000), ~"}\n"],
             ~"{\"a\":1e999}\n"],
    _ = erlmcp_test_watch:run(fun() ->
        [with_client(fun(_) -> [Line] end, #{}, fun(Client) ->
             {error, {timeout, 200}} =
                 erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 200})
         end) || Line <- lists:sublist(Lines, 4)],
        with_client(fun(Message) -> Lines ++ [text(Message, ~"after all")] end, #{},
                    fun(Client) ->
            {ok, #{~"content" := [#{~"text" := ~"after all"}]}} =
                erlmcp_client:call_tool(Client, ~"t", #{})
        end)
    end, watch(Config)).

too_large_lines(Config) ->
    Json = iolist_to_binary([~"{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{\"a\":\"",
                             binary:copy(~"x", 5_000_000), ~"\"}}\n"]),
    each(Config, #{timeout => 10_000}, {too_large, 4_194_304},
         [{of_200_mib, fun(_) -> [fun(Socket) -> flood(Socket, spaces(), ?SIZE) end] end},
          {never_ending, fun(_) -> [fun(Socket) -> flood(Socket, spaces(), infinity) end] end},
          {a_message, fun(_) -> [Json] end}]).

%% A deadline holds where there is always something to read.
endless_lines(Config) ->
    Of = fun(Message) ->
        Piece = iolist_to_binary(lists:duplicate(50, [json:encode(Message), $\n])),
        fun(_) -> [fun(Socket) -> flood(Socket, Piece, infinity) end] end
    end,
    Lines = fun(Line) ->
        Piece = binary:copy(Line, 1000),
        fun(_) -> [fun(Socket) -> flood(Socket, Piece, infinity) end] end
    end,
    Data = binary:copy(~"x", 100_000),
    each(Config, #{timeout => 500}, {timeout, 500},
         [{blank, Lines(~"\n")},
          {no_json, Lines(~"hello\n")},
          {notifications, Of(#{jsonrpc => ~"2.0", method => ~"notifications/x"})},
          {large_notifications, Of(#{jsonrpc => ~"2.0", method => ~"notifications/message",
                                     params => #{level => info, data => Data}})},
          {changes, Of(#{jsonrpc => ~"2.0", method => ~"notifications/tools/list_changed"})},
          {responses, Of(#{jsonrpc => ~"2.0", id => 999, result => #{}})},
          {requests, Of(#{jsonrpc => ~"2.0", id => 1, method => ~"ping"})},
          {questions, Of(#{jsonrpc => ~"2.0", id => 1, method => ~"elicitation/create",
                           params => #{message => ~"?"}})}]).

endless_progress(Config) ->
    Fast = fun(#{~"params" := #{~"_meta" := #{~"progressToken" := Token}}}) ->
        Piece = iolist_to_binary(lists:duplicate(50, progress(Token, ~""))),
        [fun(Socket) -> flood(Socket, Piece, infinity) end]
    end,
    Slow = fun(#{~"params" := #{~"_meta" := #{~"progressToken" := Token}}}) ->
        Piece = iolist_to_binary(progress(Token, ~"")),
        [fun(Socket) -> drip(Socket, Piece) end]
    end,
    _ = erlmcp_test_watch:run(fun() ->
        [with_client(Answer, #{timeout => 1900, max_timeout => 2000}, fun(Client) ->
             Began = now_ms(),
             {error, {timeout, _}} =
                 erlmcp_client:call_tool(Client, ~"t", #{}, #{progress => fun(_) -> ok end}),
             true = now_ms() - Began >= 2000,
             true = now_ms() - Began < 2000 + ?SLACK
         end) || Answer <- [Fast, Slow]]
    end, watch(Config)).

progress(Token, Text) ->
    [json:encode(#{jsonrpc => ~"2.0", method => ~"notifications/progress",
                   params => #{progressToken => Token, progress => 1, message => Text}}), $\n].

%% Notifications that a call's own fun is too slow for do not wait without a bound.
slow_reader_of_progress(Config) ->
    Text = binary:copy(~"x", 1_000_000),
    Answer = fun(#{~"params" := #{~"_meta" := #{~"progressToken" := Token}}}) ->
        Piece = iolist_to_binary(progress(Token, Text)),
        [fun(Socket) -> flood(Socket, Piece, 300_000_000) end]
    end,
    {_, Cost} = erlmcp_test_watch:run(fun() ->
        with_client(Answer, #{timeout => 4000, max_timeout => 4000}, fun(Client) ->
            Slow = fun(_) -> receive after 100 -> ok end end,
            {error, _} = erlmcp_client:call_tool(Client, ~"t", #{}, #{progress => Slow})
        end)
    end, watch(Config)),
    ct:pal("~p", [Cost]).

endless_questions(Config) ->
    Line = [json:encode(#{jsonrpc => ~"2.0", id => 1, method => ~"elicitation/create",
                          params => #{message => ~"?", requestedSchema => #{}}}), $\n],
    Piece = iolist_to_binary(lists:duplicate(50, Line)),
    Answer = fun(_) -> [fun(Socket) -> flood(Socket, Piece, infinity) end] end,
    {_, Cost} = erlmcp_test_watch:run(fun() ->
        with_peer(session(Answer), #{era => session, timeout => 1000,
                                     inputs => #{elicit => fun(_) -> decline end}},
                  fun(Client) ->
            {error, {timeout, 1000}} = erlmcp_client:call_tool(Client, ~"t", #{})
        end)
    end, watch(Config)),
    ct:pal("~p", [Cost]).

endless_pages(Config) ->
    Page = fun(Cursor) ->
        fun(Message) -> [complete(Message, #{tools => [], nextCursor => Cursor()})] end
    end,
    Next = fun() -> integer_to_binary(erlang:unique_integer([positive])) end,
    _ = erlmcp_test_watch:run(fun() ->
        with_client(Page(fun() -> ~"same" end), #{}, fun(Client) ->
            {error, {cursor_loop, ~"same"}} = erlmcp_client:list_tools(Client)
        end),
        with_client(Page(Next), #{}, fun(Client) ->
            {error, {too_many_pages, 1000}} = erlmcp_client:list_tools(Client)
        end)
    end, watch(Config)).

floods_for_a_subscriber(Config) ->
    Junk = binary:copy(~"j", 200_000),
    Log = #{jsonrpc => ~"2.0", method => ~"notifications/message",
            params => #{level => info, data => Junk}},
    Updated = #{jsonrpc => ~"2.0", method => ~"notifications/resources/updated",
                params => #{uri => ~"test://a", junk => Junk}},
    {_, Cost} = erlmcp_test_watch:run(fun() ->
        [begin
             Piece = iolist_to_binary([json:encode(Message), $\n]),
             Answer = fun(_) -> [fun(Socket) -> flood(Socket, Piece, infinity) end] end,
             with_peer(session(Answer), #{era => session}, fun(Client) ->
                 {ok, Ref} = erlmcp_client:subscribe(Client, #{logs => true,
                                                               resources => [~"test://a"]}),
                 receive {erlmcp, Ref, subscribed} -> ok after ?WAIT -> error(not_subscribed) end,
                 {error, {timeout, 2000}} =
                     erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 2000}),
                 {message_queue_len, Unread} = process_info(self(), message_queue_len),
                 true = Unread =< 1100 orelse error({unread, Unread})
             end)
         end || Message <- [Log, Updated]]
    end, watch(Config)),
    ct:pal("~p", [Cost]).

%% "Head-of-line blocking": what one call waits for is nothing to the others.
one_slow_call_delays_nobody(Config) ->
    Answer = fun(#{~"params" := #{~"arguments" := #{~"slow" := true}}}) -> [];
                (Message) -> [text(Message, ~"fast")]
             end,
    _ = erlmcp_test_watch:run(fun() ->
        with_client(Answer, #{}, fun(Client) ->
            Slow = [begin
                        {ok, Ref} = erlmcp_client:async(Client, {call_tool, ~"t", #{slow => true}},
                                                        #{timeout => 60_000}),
                        Ref
                    end || _ <- lists:seq(1, 100)],
            [{ok, _} = erlmcp_client:call_tool(Client, ~"t", #{}) || _ <- lists:seq(1, 100)],
            [begin
                 ok = erlmcp_client:cancel(Client, Ref),
                 receive {erlmcp, Ref, {error, cancelled}} -> ok
                 after ?WAIT -> error(no_outcome)
                 end
             end || Ref <- Slow]
        end)
    end, watch(Config)).

%% The bytes that wait for a server which does not read are bounded.
does_not_read(Config) ->
    Big = binary:copy(~"x", 3_000_000),
    Deaf = fun(_) -> [fun(_) -> receive after ?WAIT -> close end end] end,
    {Outcomes, Cost} = erlmcp_test_watch:run(fun() ->
        with_client(Deaf, #{timeout => 1000}, fun(Client) ->
            {ok, _} = erlmcp_client:server(Client),
            %% From this one on it reads no more.
            {ok, First} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
            _ = erlmcp_test_peer:received(~"tools/call"),
            Refs = [First | [begin
                                 {ok, Ref} = erlmcp_client:async(Client, {call_tool, ~"t",
                                                                          #{text => Big}}),
                                 Ref
                             end || _ <- lists:seq(1, 10)]],
            [receive {erlmcp, Ref, {error, Reason}} -> Reason
             after ?WAIT -> error(no_outcome)
             end || Ref <- Refs]
        end)
    end, watch(Config)),
    true = lists:member({overload, 16_777_216}, Outcomes),
    true = lists:member({timeout, 1000}, Outcomes),
    ct:pal("~p ~p", [Outcomes, Cost]).

%% A server that ends every connection is not connected to without a pause.
no_connection_lasts(Config) ->
    Seen = counters:new(1, []),
    _ = erlmcp_test_watch:run(fun() ->
        {ok, Listen} = gen_tcp:listen(0, [{active, false}, {ip, {127, 0, 0, 1}}]),
        {ok, Port} = inet:port(Listen),
        Server = spawn(fun() -> turn_away(Listen, Seen) end),
        ok = gen_tcp:controlling_process(Listen, Server),
        {ok, Client} = erlmcp_client:start_link({tcp, {127, 0, 0, 1}, Port, #{}}),
        Until = now_ms() + 2000,
        ok = asked_until(Client, Until),
        ok = erlmcp_client:stop(Client),
        exit(Server, kill)
    end, watch(Config)),
    true = counters:get(Seen, 1) < 20 orelse error({connections, counters:get(Seen, 1)}).

turn_away(Listen, Seen) ->
    {ok, Socket} = gen_tcp:accept(Listen),
    ok = counters:add(Seen, 1, 1),
    ok = gen_tcp:close(Socket),
    turn_away(Listen, Seen).

asked_until(Client, Until) ->
    case now_ms() < Until of
        true ->
            {error, _} = erlmcp_client:list_tools(Client, #{timeout => 500}),
            receive after 10 -> asked_until(Client, Until) end;
        false ->
            ok
    end.

%% Child processes, which are small programs of the shell.

-define(READ, "while read -r line; do case $line in *server/discover*) "
              "id=${line##*\\\"id\\\":}; id=${id%%[,\\}]*}; "
              "printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"resultType\":\"complete\","
              "\"ttlMs\":0,\"cacheScope\":\"private\",\"supportedVersions\":[\"2026-07-28\"],"
              "\"capabilities\":{}}}\\n' \"$id\";; *tools/call*) ").

child(Does) ->
    [~"sh", ~"-c", iolist_to_binary([?READ, Does, ";; esac; done"])].

child_never_answers(Config) ->
    children(Config, #{timeout => 500}, {timeout, 500},
             [{silence, "sleep 30"},
              {blank_lines, "while printf '\\n'; do :; done"},
              {bytes_slowly, "while printf '{'; do sleep 0.05; done"}]).

child_ends(Config) ->
    children(Config, #{}, {closed, {exit_status, 7}}, [{exits, "exit 7"},
                                                       {in_a_line, "printf '{\"json'; exit 7"}]),
    children(Config, #{}, closed, [{is_killed, "kill -9 $$"}, {closes_its_output, "exec >&-"}]).

child_writes_200_mib(Config) ->
    children(Config, #{timeout => 20_000}, {too_large, 4_194_304},
             [{of_200_mib, "head -c 209715200 /dev/zero | tr '\\0' x; echo"}]).

child_floods(Config) ->
    children(
        Config, #{timeout => 500}, {timeout, 500},
        [{text, "yes 'hello, world'"},
         {short_lines, "yes"},
         {on_standard_error, "yes error >&2"},
         {notifications, "yes '{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}'"},
         {pings, "yes '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}'"}]).

child_cannot_be_started(Config) ->
    _ = erlmcp_test_watch:run(fun() ->
        [begin
             {ok, Client} = erlmcp_client:start_link({stdio, Command, #{}}),
             {error, {connect, _} = Reason} = erlmcp_client:list_tools(Client),
             true = is_binary(erlmcp_client:format_error(Reason)),
             ok = erlmcp_client:stop(Client)
         end || Command <- [~"/nowhere/to/be/found", ~"/etc/passwd", [~"sh", ~"-c", ~"exit 127"]]]
    end, watch(Config)).

%% "Orphaned stdio processes": those that ignore everything end with their client too, and so do
%% their own children.
no_child_is_left(Config) ->
    Mark = integer_to_list(erlang:unique_integer([positive]) + 1_000_000),
    Stubborn = ["trap '' TERM INT HUP PIPE; sleep ", Mark, " & while :; do sleep ", Mark, "; done"],
    _ = erlmcp_test_watch:run(fun() ->
        with_child(Stubborn, #{stop_ms => 200}, fun(Client) ->
            {error, {timeout, 300}} =
                erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 300}),
            true = running(Mark) > 0
        end),
        ok = none_runs(Mark, now_ms() + ?WAIT)
    end, watch(Config)).

%% The lines of the child wait in front of the end of the client.
flooding_child_ends_with_a_killed_client(Config) ->
    Mark = integer_to_list(erlang:unique_integer([positive]) + 1_000_000),
    _ = erlmcp_test_watch:run(fun() ->
        {ok, Client} = erlmcp_client:start_link({stdio, child(["sleep ", Mark, " & yes"]),
                                                 #{era => stateless, stop_ms => 200}}),
        {ok, _} = erlmcp_client:server(Client, #{timeout => ?WAIT}),
        {error, {timeout, 300}} = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 300}),
        true = running(Mark) > 0,
        true = unlink(Client),
        true = exit(Client, kill),
        ok = none_runs(Mark, now_ms() + ?SLACK)
    end, watch(Config)).

running(Mark) ->
    length(string:split(os:cmd("ps -A -o args="), "sleep " ++ Mark, all)) - 1.

none_runs(Mark, Deadline) ->
    case running(Mark) of
        0 -> ok;
        _ ->
            true = now_ms() < Deadline orelse error(orphans),
            receive after 50 -> none_runs(Mark, Deadline) end
    end.

children(Config, Options, Expected, Kinds) ->
    {Outcomes, Cost} = erlmcp_test_watch:run(fun() ->
        [{Name, with_child(Does, #{stop_ms => 200}, fun(Client) ->
             called(Client, Expected, maps:get(timeout, Options, ?WAIT))
         end)} || {Name, Does} <- Kinds]
    end, watch(Config)),
    checked(Outcomes, Cost).

with_child(Does, Options, Do) ->
    {ok, Client} = erlmcp_client:start_link({stdio, child(Does), Options#{era => stateless}}),
    {ok, _} = erlmcp_client:server(Client, #{timeout => ?WAIT}),
    Given = Do(Client),
    Began = now_ms(),
    ok = erlmcp_client:stop(Client),
    true = now_ms() - Began < ?SLACK,
    Given.

%% The course of a case.

each(Config, Options, Expected, Kinds) ->
    Timeout = maps:get(timeout, Options, ?WAIT),
    {Outcomes, Cost} = erlmcp_test_watch:run(fun() ->
        [{Name, with_client(Answer, maps:remove(timeout, Options), fun(Client) ->
             {ok, _} = erlmcp_client:server(Client),
             called(Client, Expected, Timeout)
         end)} || {Name, Answer} <- Kinds]
    end, watch(Config)),
    checked(Outcomes, Cost).

called(Client, Expected, Timeout) ->
    Began = now_ms(),
    Outcome = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => Timeout}),
    Took = now_ms() - Began,
    case Outcome of
        {error, Reason} when Reason =:= Expected orelse element(1, Reason) =:= Expected,
                             Took < Timeout + ?SLACK ->
            _ = <<(erlmcp_client:format_error(Reason))/binary>>,
            Took;
        _ ->
            {unexpected, Outcome, Took}
    end.

checked(Outcomes, Cost) ->
    ct:pal("milliseconds: ~p~n~p", [Outcomes, Cost]),
    [] = [Wrong || {_, Took} = Wrong <- Outcomes, not is_integer(Took)].

with_client(Answer, Options, Do) ->
    with_peer(fun(#{~"method" := ~"server/discover"} = Message) ->
                      [complete(Message, #{supportedVersions => [~"2026-07-28"],
                                           capabilities => #{tools => #{}}})];
                 (#{~"id" := _} = Message) ->
                      Answer(Message);
                 (_) ->
                      []
              end, Options#{era => stateless}, Do).

session(Answer) ->
    fun(#{~"method" := ~"initialize"} = Message) ->
            [result(Message, #{protocolVersion => ~"2025-11-25",
                               capabilities => #{tools => #{}, resources => #{}},
                               serverInfo => #{name => ~"peer", version => ~"1"}})];
       (#{~"method" := ~"tools/call"} = Message) ->
            Answer(Message);
       (#{~"id" := _, ~"method" := _} = Message) ->
            [result(Message, #{})];
       (_) ->
            []
    end.

with_peer(Answer, Options, Do) ->
    #{port := Port} = Peer = erlmcp_test_peer:tcp(Answer),
    {ok, Client} = erlmcp_client:start_link({tcp, {127, 0, 0, 1}, Port, Options}),
    Given = Do(Client),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer),
    ok = flushed(),
    Given.

flushed() ->
    receive
        {peer, _} -> flushed();
        {erlmcp, _, _} -> flushed()
    after 0 ->
        ok
    end.

complete(Message, Result) ->
    result(Message, maps:merge(#{resultType => complete, ttlMs => 0, cacheScope => public},
                               Result)).

text(Message, Text) ->
    complete(Message, #{content => [#{type => text, text => Text}]}).

now_ms() ->
    erlang:monotonic_time(millisecond).
