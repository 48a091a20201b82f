-module(prometheus_SUITE).
-moduledoc """
The page `/metrics` of a listener, as Prometheus reads it: its names, its values, its size, and the
error of a project without the library.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([page_has_the_figures/1, families_are_those_that_are_listed/1, histograms_are_cumulative/1,
         targets_are_bounded/1, servers_have_labels_of_their_own/1,
         ended_servers_have_no_figures/1, strange_names_are_escaped/1,
         page_has_the_figures_of_clients/1, refused_connections_are_shown/1,
         library_is_needed/1, another_page_outlives_the_application/1, figures_never_decrease/1,
         promtool_is_content/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [page_has_the_figures, page_has_the_figures_of_clients, refused_connections_are_shown,
     families_are_those_that_are_listed, histograms_are_cumulative,
     targets_are_bounded, servers_have_labels_of_their_own, ended_servers_have_no_figures,
     strange_names_are_escaped,
     library_is_needed, another_page_outlives_the_application, figures_never_decrease,
     promtool_is_content].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

page_has_the_figures(_) ->
    Server = start(#{id => ~"figures", tools => [echo(~"echo"), fails(~"fails")]}),
    call(~"echo", Server),
    call(~"echo", Server),
    call(~"fails", Server),
    call(~"unknown", Server),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    #{status := 204} = erlmcp_test_http:delete(Server, Session),
    #{status := 200, headers := #{~"content-type" := Type}, body := Text} =
        get(~"/metrics", Server),
    <<"text/plain; version=0.0.4", _/binary>> = Type,
    Samples = samples(Text),
    Expected = [
        {~"mcp_server_requests_total",
         [{~"mcp_method_name", ~"tools/call"}, {~"outcome", ~"ok"}], 2},
        {~"mcp_server_requests_total",
         [{~"mcp_method_name", ~"tools/call"}, {~"outcome", ~"tool_error"}], 1},
        {~"mcp_server_requests_total",
         [{~"mcp_method_name", ~"tools/call"}, {~"outcome", ~"refused"}], 1},
        {~"mcp_server_refusals_total", [{~"code", ~"1048"}, {~"name", ~"tool_not_found"}], 1},
        {~"mcp_server_operation_duration_seconds_count",
         [{~"mcp_method_name", ~"tools/call"}, {~"gen_ai_operation_name", ~"execute_tool"},
          {~"gen_ai_tool_name", ~"echo"}], 2},
        {~"mcp_server_operation_duration_seconds_bucket",
         [{~"mcp_method_name", ~"tools/call"}, {~"gen_ai_operation_name", ~"execute_tool"},
          {~"gen_ai_tool_name", ~"fails"}, {~"error_type", ~"tool_error"}, {~"le", ~"+Inf"}], 1},
        {~"mcp_server_operation_duration_seconds_count",
         [{~"mcp_method_name", ~"tools/call"}, {~"gen_ai_operation_name", ~"execute_tool"},
          {~"error_type", ~"tool_not_found"}, {~"rpc_response_status_code", ~"-32602"}], 1},
        {~"mcp_server_operation_duration_seconds_count", [{~"mcp_method_name", ~"initialize"}], 1},
        {~"mcp_server_session_duration_seconds_count",
         [{~"mcp_protocol_version", ~"2025-11-25"}, {~"network_transport", ~"tcp"}], 1},
        {~"mcp_server_faults_total", [], 0}, {~"mcp_server_message_queue_length", [], 0},
        {~"mcp_server_sessions_active", [], 0}, {~"mcp_server_sessions_opened_total", [], 1}],
    [] = [Sample || {Name, Labels, Value} = Sample <- Expected,
                    {Name, [{~"server", ~"figures"} | Labels]} =/= key(Sample)
                        orelse value(Sample, Samples) =/= Value],
    %% The connection of the scrape is one.
    true = value({~"mcp_server_connection_active", [], 1}, Samples) >= 1,
    %% The guard looks at the memory when it starts.
    [Used] = [Value || {~"mcp_node_memory_used_bytes", [], Value} <- Samples],
    [Limit] = [Value || {~"mcp_node_memory_limit_bytes", [], Value} <- Samples],
    true = Used > 1_000_000 andalso Limit > Used,
    %% The machine's, by the library's own collectors.
    [_ | _] = [Name || {<<"erlang_vm_", _/binary>> = Name, _, _} <- Samples],
    #{status := 405} = post(~"/metrics", Server),
    #{status := 404} = get(~"/metrics/other", Server),
    ok = erlmcp_test_http:stop(Server).

%% What the clients of the node have asked a server.
page_has_the_figures_of_clients(_) ->
    #{port := Port, url := Url} = Server = start(#{tools => [echo(~"echo"), fails(~"fails")]}),
    {ok, Client} = erlmcp_client:start_link({http, Url, #{era => session}}),
    [_ = erlmcp_client:call_tool(Client, Name, #{})
     || Name <- [~"echo", ~"echo", ~"fails", ~"unknown"]],
    Text = scraped(Server),
    ok = erlmcp_client:stop(Client),
    Upstream = [{~"server_address", ~"127.0.0.1"}, {~"server_port", integer_to_binary(Port)},
                {~"network_transport", ~"tcp"}, {~"mcp_protocol_version", ~"2025-11-25"}],
    Call = {~"mcp_method_name", ~"tools/call"},
    Execute = [Call, {~"gen_ai_operation_name", ~"execute_tool"}],
    Expected = [
        {~"mcp_client_requests_total", [Call, {~"outcome", ~"ok"}], 2},
        {~"mcp_client_requests_total", [Call, {~"outcome", ~"tool_error"}], 1},
        {~"mcp_client_requests_total", [Call, {~"outcome", ~"failed"}], 1},
        {~"mcp_client_requests_total",
         [{~"mcp_method_name", ~"initialize"}, {~"outcome", ~"ok"}], 1},
        {~"mcp_client_processing_duration_ms_count", [Call], 2},
        {~"mcp_client_operation_duration_seconds_count",
         Execute ++ [{~"gen_ai_tool_name", ~"echo"}], 2},
        {~"mcp_client_operation_duration_seconds_count",
         Execute ++ [{~"gen_ai_tool_name", ~"fails"}, {~"error_type", ~"tool_error"}], 1},
        {~"mcp_client_operation_duration_seconds_bucket",
         Execute ++ [{~"error_type", ~"-32602"}, {~"rpc_response_status_code", ~"-32602"},
                     {~"le", ~"+Inf"}], 1},
        {~"mcp_client_sessions_active", [], 1}, {~"mcp_client_sessions_opened_total", [], 1},
        {~"mcp_client_clients_active", [], 1}, {~"mcp_client_requests_active", [], 0},
        {~"mcp_client_message_queue_length", [], 0}],
    Samples = samples(Text),
    [] = [{Sample, Found} || {Name, Labels, Value} = Sample <- Expected,
                             Found <- [[Is || {Of, By, Is} <- Samples,
                                              {Of, By} =:= {Name, Upstream ++ Labels}]],
                             Found =/= [Value]],
    [true = Bytes > 0 || {Name, Labels, Bytes} <- Samples, Labels =:= Upstream ++ [Call],
                         Name =:= ~"mcp_client_request_bytes_total"
                             orelse Name =:= ~"mcp_client_response_bytes_total"],
    [_] = [ended || {~"mcp_client_session_duration_seconds_count", Labels, 1}
                        <- samples(scraped(Server)), Labels =:= Upstream],
    ok = erlmcp_test_http:stop(Server).

scraped(Server) ->
    #{status := 200, body := Text} = get(~"/metrics", Server),
    Text.

refused_connections_are_shown(_) ->
    Server = start(#{id => ~"full", limits => #{connections => 1}}),
    Open = erlmcp_test_http:connect(Server),
    ok = held(1, Server),
    #{status := 429} = erlmcp_test_http:call(Server, ~"tools/list", #{}),
    ok = erlmcp_test_http:close(Open),
    ok = held(0, Server),
    Labels = [{~"server", ~"full"}, {~"listener", ~"http"}, {~"code", ~"1060"},
              {~"name", ~"concurrent_limit_exceeded"}],
    [1] = [Count || {~"mcp_server_connections_refused_total", By, Count}
                        <- samples(scraped(Server)), By =:= Labels],
    ok = erlmcp_test_http:stop(Server).

held(Count, #{pid := Pid} = Server) ->
    case erlmcp:info(Pid) of
        #{connections := Count} -> ok;
        #{} ->
            receive after 5 -> held(Count, Server) end
    end.

%% Every family of the page stands in the list that documents it, with its type and its labels.
families_are_those_that_are_listed(_) ->
    Server = start(#{tools => [echo(~"echo")]}),
    call(~"echo", Server),
    {ok, Client} = erlmcp_client:start_link({server, maps:get(pid, Server), #{}}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    {error, _} = erlmcp_client:call_tool(Client, ~"unknown", #{}),
    ok = erlmcp_client:stop(Client),
    #{body := Text} = get(~"/metrics", Server),
    Listed = #{atom_to_binary(Name) => {atom_to_binary(Type), Labels, Help}
               || {Name, Type, Labels, Help} <- erlmcp_prometheus:families()},
    Types = [{Name, Type} || [~"#", ~"TYPE", Name, Type] <- words(Text), is_ours(Name)],
    true = length(Types) > 20,
    [] = [Name || {Name, Type} <- Types,
                  not is_map_key(Name, Listed) orelse element(1, map_get(Name, Listed)) =/= Type],
    [] = [{Name, Label} || {Name, Labels, _} <- samples(Text), is_ours(Name), {Label, _} <- Labels,
                           Label =/= ~"le",
                           not lists:member(binary_to_atom(Label),
                                            element(2, map_get(family(Name, Listed), Listed)))],
    ok = erlmcp_test_http:stop(Server).

is_ours(<<"mcp_", _/binary>>) -> true;
is_ours(_) -> false.

family(Name, Listed) when is_map_key(Name, Listed) -> Name;
family(Name, _) -> re:replace(Name, ~"_(bucket|count|sum)$", ~"", [{return, binary}]).

histograms_are_cumulative(_) ->
    Server = start(#{id => ~"histograms", tools => [echo(~"echo")]}),
    [call(~"echo", Server) || _ <- lists:seq(1, 20)],
    #{body := Text} = get(~"/metrics", Server),
    Buckets = [{Name, lists:keydelete(~"le", 1, Labels), Count}
               || {Name, Labels, Count} <- samples(Text),
                  {~"server", ~"histograms"} <- Labels, lists:keymember(~"le", 1, Labels)],
    Series = maps:groups_from_list(fun({Name, Labels, _}) -> {Name, Labels} end,
                                   fun({_, _, Count}) -> Count end, Buckets),
    true = map_size(Series) >= 2,
    [] = [Counts || _ := Counts <- Series, Counts =/= lists:sort(Counts)],
    Tool = [Le || {~"mcp_server_operation_duration_seconds_bucket", Labels, _} <- samples(Text),
                  {~"server", ~"histograms"} <- Labels, {~"gen_ai_tool_name", ~"echo"} <- Labels,
                  {~"le", Le} <- Labels],
    [~"0.01", ~"0.02", ~"0.05", ~"0.1", ~"0.2", ~"0.5", ~"1", ~"2", ~"5", ~"10", ~"30", ~"60",
     ~"120", ~"300", ~"+Inf"] = Tool,
    ok = erlmcp_test_http:stop(Server).

%% 200 tools and one for all others, shown in a megabyte. They are read in 20 milliseconds, and on a
%% machine that is slower than usual in twice that, when it has nothing else to do.
targets_are_bounded(_) ->
    %% Without the figures of clients from before.
    ok = application:stop(erlmcp),
    ok = application:start(erlmcp),
    Names = [<<"tool_", (integer_to_binary(Number))/binary>> || Number <- lists:seq(1, 250)],
    Server = start(#{id => ~"many", tools => [echo(Name) || Name <- Names]}),
    [call(Name, Server) || Name <- Names],
    ok = prometheus_registry:register_collector(erlmcp_prometheus),
    ok = formatted_within(40_000, erlang:monotonic_time(millisecond) + 60_000),
    #{body := Text} = get(~"/metrics", Server),
    true = byte_size(Text) < 1_000_000,
    Tools = lists:usort([Tool || {_, Labels, _} <- samples(Text), {~"server", ~"many"} <- Labels,
                                 {~"gen_ai_tool_name", Tool} <- Labels]),
    201 = length(Tools),
    true = lists:member(~"_OTHER", Tools),
    ok = erlmcp_test_http:stop(Server).

formatted_within(Microseconds, Deadline) ->
    {Took, _} = timer:tc(fun() -> prometheus_text_format:format() end),
    case {Took < Microseconds, erlang:monotonic_time(millisecond) < Deadline} of
        {true, _} -> ok;
        {false, true} -> formatted_within(Microseconds, Deadline);
        {false, false} -> error({slow, Took})
    end.

servers_have_labels_of_their_own(_) ->
    Servers = [start(#{id => ~"twin-2"}), start(#{name => ~"twin"}), start(#{name => ~"twin"}),
               start(#{id => twins}), start(#{id => {~"a", 1}})],
    #{body := Text} = get(~"/metrics", hd(Servers)),
    Labels = [Server || {~"mcp_server_faults_total", [{~"server", Server}], _} <- samples(Text)],
    [] = [~"twin", ~"twin-2", ~"twin-3", ~"twins"] -- Labels,
    5 = length(lists:usort(Labels)),
    5 = length(Labels),
    [ok = erlmcp_test_http:stop(Server) || Server <- Servers].

%% A server may end while it is read, and then its tables have no figures.
ended_servers_have_no_figures(_) ->
    #{pid := Pid} = Server = start(#{}),
    {ok, Pid, Instance} = erlmcp_registry:whereis(Pid),
    [#{connections := 0}] = erlmcp_metrics:of_running(Pid, Instance),
    ok = erlmcp_test_http:stop(Server),
    [] = erlmcp_metrics:of_running(Pid, Instance).

%% A resource may have any text in its URI, and a server any name.
strange_names_are_escaped(_) ->
    Server = start(#{id => ~B'a"b\c', tools => [echo(~"echo")]}),
    call(~"echo", Server),
    #{body := Text} = get(~"/metrics", Server),
    {_, _} = binary:match(Text, ~B'server="a\"b\\c"'),
    ok = erlmcp_test_http:stop(Server).

library_is_needed(_) ->
    {ok, Peer, _} = peer:start_link(#{connection => standard_io, wait_boot => 60_000,
                                      args => ["-pa" | [Path || Path <- code:get_path(),
                                                                Path =/= "."]]}),
    Call = fun(Module, Function, Arguments) ->
        peer:call(Peer, Module, Function, Arguments, 60_000)
    end,
    {ok, _} = Call(application, ensure_all_started, [erlmcp]),
    Options = #{name => ~"bare", version => ~"1.0.0", listen => [{http, #{metrics => true}}]},
    ok = Call(application, stop, [prometheus]),
    true = Call(code, del_path, [prometheus]),
    [_ = Call(code, delete, [Module]) || Module <- [prometheus_text_format]],
    {error, {bad_option, {http, metrics}, Expected}} = Call(erlmcp, start_server, [Options]),
    {_, _} = binary:match(Expected, ~"prometheus"),
    %% Without the option nothing of it is needed.
    {ok, _} = Call(erlmcp, start_server, [Options#{listen := [{http, #{}}]}]),
    ok = peer:stop(Peer),
    {error, {bad_option, {http, metrics}, ~"true or false"}} =
        erlmcp:start_server(Options#{listen := [{http, #{metrics => yes}}]}).

%% A project may have its own page, where the library's figures are among others.
another_page_outlives_the_application(_) ->
    ok = prometheus_registry:register_collector(erlmcp_prometheus),
    ok = application:stop(erlmcp),
    try
        [] = [Name || {<<"mcp_", Of:5/binary, _/binary>> = Name, _, _}
                          <- samples(prometheus_text_format:format()), Of =/= ~"node_"]
    after
        ok = application:start(erlmcp)
    end.

%% While calls run, no scrape shows less than the one before it.
figures_never_decrease(_) ->
    Server = start(#{id => ~"growing", tools => [echo(~"echo"), fails(~"fails")]}),
    {ok, Client} = erlmcp_client:start_link({server, maps:get(pid, Server), #{}}),
    Callers = [spawn_monitor(fun() ->
                   [_ = erlmcp_client:call_tool(Client, Name, #{})
                    || _ <- lists:seq(1, 300), Name <- [~"echo", ~"fails", ~"no"]]
               end) || _ <- [1, 2]],
    Scrape = fun() ->
        #{body := Text} = get(~"/metrics", Server),
        #{{Name, Labels} => Value || {Name, Labels, Value} <- samples(Text), is_ours(Name),
                                     lists:member({~"server", ~"growing"}, Labels)
                                         orelse lists:keymember(~"server_address", 1, Labels),
                                     re:run(Name, ~"_(total|count|bucket|sum)$") =/= nomatch}
    end,
    lists:foldl(fun(_, Before) ->
        Next = Scrape(),
        [] = [{Key, Was, Is} || Key := Was <- Before, Is <- [maps:get(Key, Next, gone)],
                                Is =:= gone orelse Is < Was],
        Next
    end, Scrape(), lists:seq(1, 10)),
    [receive {'DOWN', Monitor, process, _, normal} -> ok end || {_, Monitor} <- Callers],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

%% All but the names that other servers of MCP have, too.
promtool_is_content(Config) ->
    Promtool = filename:join(erlmcp_test_installed:path("prometheus"), "promtool"),
    Server = start(#{tools => [echo(~"echo"), fails(~"fails")]}),
    [call(Name, Server) || Name <- [~"echo", ~"fails", ~"no"]],
    {ok, Client} = erlmcp_client:start_link({server, maps:get(pid, Server), #{era => session}}),
    [_ = erlmcp_client:call_tool(Client, Name, #{}) || Name <- [~"echo", ~"fails", ~"no"]],
    ok = erlmcp_client:stop(Client),
    #{body := Text} = get(~"/metrics", Server),
    File = filename:join(proplists:get_value(priv_dir, Config), "metrics.txt"),
    ok = file:write_file(File, [[Line, $\n] || Line <- binary:split(Text, ~"\n", [global]),
                                               re:run(Line, "(^|[^a-z])mcp_") =/= nomatch]),
    Said = os:cmd(lists:concat([Promtool, " check metrics < ", File, " 2>&1"])),
    ["mcp_client_processing_duration_ms metric names should not contain abbreviated units",
     "mcp_server_processing_duration_ms metric names should not contain abbreviated units"] =
        lists:sort(string:lexemes(Said, "\n")),
    ok = erlmcp_test_http:stop(Server).

start(Options) ->
    erlmcp_test_http:start(maps:merge(#{listen => [{http, #{metrics => true}}]}, Options)).

echo(Name) ->
    #{name => Name, handler => fun(_, _) -> ~"hello" end}.

fails(Name) ->
    #{name => Name, handler => fun(_, _) -> {error, ~"no"} end}.

call(Name, Server) ->
    #{} = erlmcp_test_http:call(Server, ~"tools/call", #{name => Name}).

get(Path, Server) ->
    request(~"GET", Path, Server).

post(Path, Server) ->
    request(~"POST", Path, Server).

request(Method, Path, Server) ->
    Socket = erlmcp_test_http:connect(Server),
    ok = erlmcp_test_http:write(Socket, [Method, ~" ", Path, ~" HTTP/1.1\r\nhost: 127.0.0.1\r\n",
                                         ~"content-length: 0\r\n\r\n"]),
    {Status, Headers} = erlmcp_test_http:head(Socket),
    Body = erlmcp_test_http:body(Socket, Headers),
    ok = erlmcp_test_http:close(Socket),
    #{status => Status, headers => Headers, body => Body}.

words(Text) ->
    [binary:split(Line, ~" ", [global]) || Line <- binary:split(Text, ~"\n", [global])].

%% The samples of the text format: each with its name, its labels and its value.
samples(Text) ->
    [{Name, labels(Labels), number(Value)}
     || Line <- binary:split(Text, ~"\n", [global]),
        {match, [Name, Labels, Value]}
            <- [re:run(Line, ~B'^([a-z_A-Z0-9:]+)(?:\{(.*)\})? (\S+)$',
                       [{capture, all_but_first, binary}])]].

labels(Text) ->
    case re:run(Text, ~B'([a-z_]+)="((?:[^"\\]|\\.)*)"',
                [global, {capture, all_but_first, binary}]) of
        {match, Labels} -> [{Name, Value} || [Name, Value] <- Labels];
        nomatch -> []
    end.

number(Text) ->
    try
        binary_to_integer(Text)
    catch
        error:badarg ->
            try binary_to_float(Text) catch error:badarg -> Text end
    end.

key({Name, Labels, _}) ->
    {Name, [{~"server", ~"figures"} | Labels]}.

value(Sample, Samples) ->
    Key = key(Sample),
    case [Value || {Name, Labels, Value} <- Samples, {Name, Labels} =:= Key] of
        [Value] -> Value;
        Other -> Other
    end.
